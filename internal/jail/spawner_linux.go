package jail

import (
	"runtime"
	"sync"

	"hutch/internal/plan"
)

// spawner is a thread that lives as long as this process: the kernel kills a box
// when the thread that made it ends (PR_SET_PDEATHSIG), and no other thread of a
// Go program can be relied on to stay.
var spawner = sync.OnceValue(func() chan func() {
	work := make(chan func())
	go func() {
		runtime.LockOSThread()
		for f := range work {
			f()
		}
	}()
	return work
})

// OnSpawner runs f on the thread that makes the boxes which outlive their
// callers, one call at a time: for what a box inherits from its thread. f must
// leave the thread as it was, and must not call OnSpawner.
func OnSpawner(f func()) {
	done := make(chan struct{})
	spawner() <- func() {
		defer close(done)
		f()
	}
	<-done
}

// StartResident is Start for any goroutine: the box lives until it is ended, or
// this process ends.
func StartResident(p *plan.Plan, procs []int) (box *Box, err error) {
	OnSpawner(func() { box, err = Start(p, procs) })
	return box, err
}
