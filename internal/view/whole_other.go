//go:build !linux

package view

func (s *sight) showWhole() { s.fail("whole_root: only Linux has what it takes") }
