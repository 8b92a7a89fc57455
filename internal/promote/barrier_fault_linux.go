//go:build hutchfault

package promote

import (
	"os"
	"slices"
	"strings"
)

// HUTCH_LOST_BARRIERS lists the barriers to leave out, separated by commas;
// "each" among them makes every flush an fsync of each file, never a syncfs.
var lostBarriers = strings.Split(os.Getenv("HUTCH_LOST_BARRIERS"), ",")

func init() {
	if lost("each") {
		dirtyKB = func() int64 { return 1 << 40 }
	}
}

func lost(barrier string) bool { return slices.Contains(lostBarriers, barrier) }
