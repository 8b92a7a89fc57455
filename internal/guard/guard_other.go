//go:build !linux

package guard

import "errors"

var errSystem = errors.New("the guard is not supported on this system")

// Load is not supported on this system.
func Load(string, int) (*Rules, error) { return nil, errSystem }

// Judge is not supported on this system.
func Judge(Request) ([]Finding, error) { return nil, errSystem }
