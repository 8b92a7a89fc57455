package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"hutch/internal/box"
	"hutch/internal/outcome"
	"hutch/internal/promote"
)

func undoCommand() *cobra.Command {
	var opts box.UndoOptions
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "undo [RECEIPT]",
		Short: "Take a promotion back, exactly or not at all",
		Long: `Take the last promotion into the workspace back, or the one that RECEIPT names:
content, modes, owners, attributes, links, deletions and times are as they were
before. Where something changed since, nothing is undone, and each path is named
with what happened to it.

What was promoted is kept for a while, in .hutch in the workspace.`,
		Example: `  hutch undo
  hutch undo 3f9c --workspace ~/project
  hutch log`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 1 {
				return errors.New("give the receipt of one promotion, or none for the last; see `hutch log`")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if cmd.Flags().Changed("workspace") && opts.Workspace == "" {
				return errors.New("--workspace: the name is empty; give a directory")
			}
			if len(args) == 1 {
				if opts.Receipt = args[0]; opts.Receipt == "" {
					return errors.New("the receipt is empty; see `hutch log`")
				}
			}
			// Only the wait for another promotion can be given up; past its
			// commit point an undo goes on to its end.
			ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			return withStore(func(s *box.Store) error {
				done, err := s.Undo(ctx, opts)
				if asJSON {
					return undoJSON(done, err)
				}
				if err != nil {
					return err
				}
				t := done.Tally
				fmt.Printf("promotion %s undone: %d created, %d modified, %d deleted are as before\n", done.ID, t.Created, t.Modified, t.Deleted)
				return nil
			})
		},
	}
	cmd.Flags().StringVar(&opts.Workspace, "workspace", "", "the workspace (default: the current directory)")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print what was undone, or what is in its way, as JSON")
	return cmd
}

func undoJSON(done *box.Undone, err error) error {
	report := struct {
		Status    outcome.Status     `json:"status"`
		Undone    *box.Undone        `json:"undone"` // null when nothing was
		Conflicts []promote.Conflict `json:"conflicts"`
		Error     string             `json:"error,omitempty"`
	}{Status: outcome.Success, Undone: done, Conflicts: []promote.Conflict{}}
	if err != nil {
		report.Status, report.Error = outcome.Error, err.Error()
		var changed *promote.ChangedError
		if errors.As(err, &changed) {
			report.Status, report.Conflicts = outcome.Conflict, changed.Changes
		}
	}
	return errors.Join(err, printJSON(report))
}
