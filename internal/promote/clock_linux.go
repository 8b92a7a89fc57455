package promote

import (
	"fmt"
	"time"

	"hutch/internal/fsat"
	"hutch/internal/workspace"
)

// checkClock refuses a stamp that times of change can no longer be held
// against: an edit made after the clock was set back looks older than the
// branch. After a reboot only a clock that is behind the stamp itself shows.
func checkClock(s workspace.Stamp) error {
	if !s.Valid {
		reason := s.Reason
		if reason == "" {
			reason = "it has no stamp"
		}
		return fmt.Errorf("the branch cannot be promoted: %s", reason)
	}
	now, err := workspace.Clocks()
	if err != nil {
		return err
	}
	back := nanos(s.Realtime) - nanos(now.Realtime)
	if s.BootID == now.BootID {
		back += nanos(now.Boottime) - nanos(s.Boottime)
	}
	if back <= int64(stepTolerance) {
		return nil
	}
	return fmt.Errorf("the clock was set back by %v since the branch, so edits made on the host meanwhile cannot be told: compare by hand (hutch diff), or run the command again",
		time.Duration(back).Round(time.Millisecond))
}

// stepTolerance is what lies between two readings of two clocks.
const stepTolerance = time.Millisecond

func nanos(t fsat.Time) int64 { return t.Sec*1e9 + t.Nsec }
