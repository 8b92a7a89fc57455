//go:build !linux

package view

func (s *sight) read(string) (string, bool) { return "", false }
