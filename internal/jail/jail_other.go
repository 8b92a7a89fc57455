//go:build !linux

package jail

// Box is a jail that was started; none is on this system yet.
type Box struct{}

// Cgroup is the control group of one box; Linux only.
type Cgroup struct{}
