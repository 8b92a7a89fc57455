package promote

import (
	"cmp"
	"slices"

	"hutch/internal/fsat"
)

const tick = 1000 // nanoseconds between two ranks

// rankTimes maps each of the given times to one that keeps their order and
// ends at commit. A file that kept a time older than the build product made
// from its predecessor would look up to date to make.
func rankTimes(times []fsat.Time, commit fsat.Time) map[fsat.Time]fsat.Time {
	sorted := slices.Clone(times)
	slices.SortFunc(sorted, func(a, b fsat.Time) int {
		return cmp.Or(cmp.Compare(a.Sec, b.Sec), cmp.Compare(a.Nsec, b.Nsec))
	})
	sorted = slices.Compact(sorted)
	ranks := make(map[fsat.Time]fsat.Time, len(sorted))
	for i, t := range sorted {
		back := int64(len(sorted)-1-i) * tick
		at := fsat.Time{Sec: commit.Sec - back/1e9, Nsec: commit.Nsec - back%1e9}
		if at.Nsec < 0 {
			at.Sec, at.Nsec = at.Sec-1, at.Nsec+1e9
		}
		ranks[t] = at
	}
	return ranks
}
