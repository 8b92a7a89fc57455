package main

import (
	"math/rand/v2"
	"os"
	"strconv"
	"testing"

	"hutch/test/lab"
)

func TestMain(m *testing.M) {
	if os.Getenv(clientEnv) != "" {
		os.Exit(client())
	}
	lab.Main(m)
}

// TestSoak is a sample of a soak, and with HUTCH_PROOF all of it.
// HUTCH_SOAK_SEED=N draws what another run drew.
func TestSoak(t *testing.T) {
	w := lab.New(t)
	c := config{hutch: lab.Hutch(t), dir: w.Base, seed: rand.Uint64N(1e9), execs: 500, workers: 4, most: 3, kills: 6, logf: t.Logf}
	if lab.Proof() {
		c.execs, c.workers, c.most, c.kills, c.long = 100_000, 8, 4, 100, true
	}
	if s := os.Getenv("HUTCH_SOAK_SEED"); s != "" {
		var err error
		if c.seed, err = strconv.ParseUint(s, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("HUTCH_SOAK_SEED=%d", c.seed)
	for _, fault := range c.run() {
		t.Error(fault)
	}
}
