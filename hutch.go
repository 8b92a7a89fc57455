// Package hutch runs a command on a copy-on-write branch of a real directory,
// inside a kernel jail, and promotes what it changed whole or not at all.
//
//	out, err := hutch.Run(ctx, hutch.Options{
//		Argv:   []string{"pytest"},
//		Commit: true, // promote when it exits 0
//	})
//
// It is a thin front on the rooms under internal; docs/architecture.md shows
// them.
package hutch

import (
	"context"

	"hutch/internal/box"
	"hutch/internal/guard"
	"hutch/internal/outcome"
	"hutch/internal/policy"
	"hutch/internal/promote"
	"hutch/internal/workspace"
)

// Options is one command to run, and how. The zero value of each field is the
// default of the command line, but for Return, which is nothing; see Defaults.
type Options = box.Request

// Promotion says which part of a change is promoted, and how.
type Promotion = box.Promotion

// Finding is a path of a change that someone else would run: Tier "hold" is
// not promoted until it is allowed.
type Finding = guard.Finding

// Conflict is a path that both the box and the host changed.
type Conflict = promote.Conflict

// Mode says what becomes of a conflict.
type Mode = promote.Mode

// The modes: nothing is promoted; the workspace's side stays; the box's side
// is taken; contents are merged.
const (
	Fail   = promote.Fail
	Ours   = promote.Ours
	Theirs = promote.Theirs
	Merge  = promote.Merge
)

// Policy is what a program says of what a command may do. What it leaves out is
// decided by the environment, the user's file and the workspace's, and the
// profile.
type Policy = policy.Policy

// The parts of a Policy.
type (
	Capabilities = policy.Capabilities
	Paths        = policy.Paths
	Network      = policy.Network
	Env          = policy.Env
	Limits       = policy.Limits
	Output       = policy.Output
	Size         = policy.Size     // bytes
	Duration     = policy.Duration // a length of time
)

// Outcome is what is known of one run, in the form of schema hutch.outcome/v1.
type Outcome = outcome.Outcome

// Status is how a run ended.
type Status = outcome.Status

// Strategy is how a branch is made.
type Strategy = workspace.Strategy

// The strategies. Auto takes overlay, else reflink, else copy.
const (
	Auto    = workspace.Auto
	Overlay = workspace.Overlay
	Reflink = workspace.Reflink
	Copy    = workspace.Copy
)

// Defaults returns the options of `hutch run` without flags: 10 MiB of each
// stream in the outcome, and all else as the policy says, ten minutes and 1 GiB
// of each stream for one.
func Defaults(argv ...string) Options {
	return Options{Argv: argv, Return: box.DefaultReturn}
}

// Run runs one command. An outcome is returned in any case; the error is
// hutch's own, never the command's. When ctx ends, the box ends with all that
// runs in it, and nothing is promoted.
func Run(ctx context.Context, opts Options) (*Outcome, error) {
	if opts.Done == nil {
		opts.Done = ctx.Done()
	}
	return box.Run(opts)
}
