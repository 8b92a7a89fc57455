package main

import (
	"context"
	"io"
	"os"
	"slices"
	"sync"

	"github.com/spf13/cobra"

	"hutch/internal/api"
	"hutch/internal/term"
)

func boxLogsCommand() *cobra.Command {
	var followed, onlyErrors bool
	var cmd *cobra.Command
	cmd = verb("logs BOX [EXEC]", "Show what a command of a box wrote", words{1, 2, "give a box and, for other than the last command, its number; see `hutch box logs BOX --json`"},
		func(ctx context.Context, args []string) error {
			return withBoxes(ctx, func(boxes quiet) error {
				if wantsJSON(cmd.Flags()) {
					return listExecs(ctx, boxes, args)
				}
				exec, err := oneExec(ctx, boxes, args)
				if err != nil {
					return err
				}
				if onlyErrors {
					return showLog(ctx, boxes, args[0], exec, "stderr", os.Stdout, followed)
				}
				var both sync.WaitGroup
				var out, errs error
				both.Go(func() { errs = showLog(ctx, boxes, args[0], exec, "stderr", os.Stderr, followed) })
				out = showLog(ctx, boxes, args[0], exec, "stdout", os.Stdout, followed)
				both.Wait()
				if out == nil {
					out = errs
				}
				return out
			})
		})
	cmd.Long = `Show what a command of a box wrote: the last one, or the one whose number is given.
Its standard error goes to standard error. --json lists the commands of the box,
or tells of the one, with outcomes.`
	cmd.Flags().BoolVarP(&followed, "follow", "f", false, "go on until the command has ended")
	cmd.Flags().BoolVar(&onlyErrors, "stderr", false, "its standard error alone, on standard output")
	return cmd
}

func listExecs(ctx context.Context, boxes quiet, args []string) error {
	if len(args) == 2 {
		e, err := boxes.Exec(ctx, args[0], args[1])
		if err != nil {
			return err
		}
		return printJSON(e)
	}
	list, err := boxes.Execs(ctx, args[0])
	if err != nil {
		return err
	}
	return printJSON(append([]api.Exec{}, list...))
}

// oneExec is the command that is meant.
func oneExec(ctx context.Context, boxes quiet, args []string) (string, error) {
	if len(args) == 2 {
		return args[1], nil
	}
	list, err := boxes.Execs(ctx, args[0])
	if err != nil {
		return "", err
	}
	if len(list) == 0 {
		return "", &api.Error{Code: api.NotFound, Text: "nothing was run in box " + args[0] + " yet; `hutch box exec " + args[0] + " -- CMD` does"}
	}
	last := slices.MaxFunc(list, func(a, b api.Exec) int { return a.Started.Compare(b.Started) })
	return last.ID, nil
}

func showLog(ctx context.Context, boxes quiet, id, exec, stream string, file *os.File, followed bool) error {
	r, err := boxes.Output(ctx, id, exec, stream, 0, followed)
	if err != nil {
		return err
	}
	defer r.Close()
	w := showing(file, term.Lines)
	defer w.Close()
	_, err = io.Copy(w, r)
	return err
}
