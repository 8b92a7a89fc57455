package policy

import (
	"strings"
	"testing"
	"time"
)

func TestSize(t *testing.T) {
	for text, want := range map[string]Size{"0": 0, "1048576": 1 << 20, "256M": 256 << 20, "1.5G": 3 << 29, "64k": 64 << 10, "75%": -75, ".5K": 512, "1GiB": 1 << 30, "2MB": 2 << 20, "1T": 1 << 40, " 5 ": 5} {
		var got Size
		if err := got.UnmarshalText([]byte(text)); err != nil || got != want {
			t.Errorf("%q: %d, %v; want %d", text, got, err, want)
		}
	}
	for text, what := range map[string]string{"-1": "negative", "-5M": "negative", "many": "not a size", "": "not a size", "9999999999T": "too large", "1e300": "not a size", "NaN": "not a size", "Inf": "not a size", "1_0": "not a size", "0x10": "not a size", "1.2.3": "not a size", "%": "not a share", "0%": "not a share", "101%": "not a share", "-5%": "not a share", "5X": "not a size", "M": "not a size"} {
		var got Size
		if err := got.UnmarshalText([]byte(text)); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("%q: %d, %v; want an error with %q", text, got, err, what)
		}
	}
}

func TestDuration(t *testing.T) {
	for text, want := range map[string]time.Duration{"30s": 30 * time.Second, "2m": 2 * time.Minute, "5": 5 * time.Second, "0": 0, "1.5": 1500 * time.Millisecond, "250ms": 250 * time.Millisecond} {
		var got Duration
		if err := got.UnmarshalText([]byte(text)); err != nil || time.Duration(got) != want {
			t.Errorf("%q: %v, %v; want %v", text, time.Duration(got), err, want)
		}
	}
	for text, what := range map[string]string{"-1s": "negative", "-3": "negative", "soon": "not a time", "+5s": "not a time", "": "not a time", "9999999h": "not a time", "2000000h": "too long"} {
		var got Duration
		if err := got.UnmarshalText([]byte(text)); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("%q: %v, %v; want an error with %q", text, time.Duration(got), err, what)
		}
	}
}

// A variable that was meant for the policy is never passed over in silence.
func TestMisspeltVariables(t *testing.T) {
	for _, name := range []string{"HUTCH_LIMITS_MEMROY", "HUTCH_LIMIT_MEMORY", "HUTCH_LIMITS", "HUTCH_CAPABILITY_NETWORK", "HUTCH_NETWORKS_CONNECT"} {
		if _, err := environment([]string{name + "=1"}); err == nil {
			t.Errorf("%s is passed over", name)
		}
	}
	for _, name := range []string{"HUTCH_BOX", "HUTCH_SOCKET", "HUTCH_BIN", "HUTCH_TEST_REFLINK_DIRS", "HUTCH_PROOF"} {
		if _, err := environment([]string{name + "=1"}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
