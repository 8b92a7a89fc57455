//go:build !linux

package main

import (
	"os"

	"hutch/internal/api"
)

// enterRaw does nothing where no command can run.
func enterRaw(*os.File) (resized <-chan os.Signal, restore func()) { return nil, func() {} }

func isTerminal(*os.File) bool { return false }

func columns(*os.File) int { return 80 }

func terminalSize(*os.File) *api.Size { return &api.Size{Rows: 24, Cols: 80} }
