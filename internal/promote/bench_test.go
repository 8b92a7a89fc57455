//go:build linux

package promote

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// BenchmarkDurable promotes small changed files and, in turn with it, does by
// hand what a careful program would: write, fsync, rename each, then fsync the
// directory. It reports both medians and their ratio. Set HUTCH_BENCH_DIR to a
// directory on a real disk.
func BenchmarkDurable(b *testing.B) {
	for _, n := range []int{1, 10, 100, 1000, 10000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			var promoted, bare []time.Duration
			for i := 0; b.Loop(); i++ {
				base, err := os.MkdirTemp(os.Getenv("HUTCH_BENCH_DIR"), "promote")
				check(b, err)
				s := smallFiles(b, base, n)
				hand := filepath.Join(base, "bare")
				plant(b, hand, s.before)
				settleDisk(b, base, s)

				start := time.Now()
				bareUpdate(b, hand, n)
				bare = append(bare, time.Since(start))

				start = time.Now()
				_, err = Apply(context.Background(), s.req)
				promoted = append(promoted, time.Since(start))
				check(b, err)
				s.close()
				purge(b, base)
			}
			p, w := median(promoted), median(bare)
			b.ReportMetric(float64(p.Microseconds())/1000, "ms-promote")
			b.ReportMetric(float64(w.Microseconds())/1000, "ms-bare")
			b.ReportMetric(float64(p)/float64(w), "ratio")
		})
	}
}

func benchName(i int) string { return fmt.Sprintf("f%05d", i) }

func smallFiles(b *testing.B, base string, n int) *scene {
	before, after := mapTree{}, mapTree{}
	for i := range n {
		before[benchName(i)] = file("old\n")
		after[benchName(i)] = file(string(content(i)))
	}
	return newScene(b, base, before, after, "")
}

func content(i int) []byte { return bytes.Repeat([]byte{byte('a' + i%26)}, 1000) }

// settleDisk leaves only the layer dirty, as a box that just ended does.
func settleDisk(b *testing.B, base string, s *scene) {
	unix.Sync()
	for _, e := range s.req.Changes.Entries {
		at := filepath.Join(base, "layer", e.Path)
		data, err := os.ReadFile(at)
		check(b, err)
		check(b, os.WriteFile(at, data, 0o644))
	}
}

func bareUpdate(b *testing.B, dir string, n int) {
	for i := range n {
		name := filepath.Join(dir, benchName(i))
		f, err := os.Create(name + ".tmp")
		check(b, err)
		_, err = f.Write(content(i))
		check(b, err)
		check(b, f.Sync())
		check(b, f.Close())
		check(b, os.Rename(name+".tmp", name))
	}
	d, err := os.Open(dir)
	check(b, err)
	check(b, d.Sync())
	check(b, d.Close())
}

func median(d []time.Duration) time.Duration {
	slices.Sort(d)
	return d[len(d)/2]
}
