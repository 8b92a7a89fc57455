package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"hutch"
	"hutch/internal/api"
)

func boxCreateCommand() *cobra.Command {
	var f policyFlags
	var q api.Create
	var cmd *cobra.Command
	cmd = verb("create", "Make a box, and print its id", noWords, func(ctx context.Context, _ []string) error {
		if err := fillCreate(&q, &f, cmd.Flags().Changed); err != nil {
			return err
		}
		return withBoxes(ctx, func(boxes quiet) error {
			b, err := boxes.Create(ctx, q)
			if err != nil {
				return err
			}
			return tellNew(wantsJSON(cmd.Flags()), b, b.ID)
		})
	})
	cmd.Long = `Make a box: a branch of the workspace, with a policy for all that will run in it.
Nothing runs yet. Its id is printed alone.`
	cmd.Example = `  hutch box create --name fix-123
  hutch box create --workspace ~/project --memory 2G --allow-net`
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVar(&q.Name, "name", "", "a name for it, beside its id")
	addCreate(flags, &q)
	f.add(flags)
	return cmd
}

// addCreate adds the flags of what a box is made of.
func addCreate(flags *pflag.FlagSet, q *api.Create) {
	flags.StringVar(&q.Workspace, "workspace", "", "the workspace (default: the current directory)")
	flags.BoolVar(&q.Force, "force", false, "allow / or a home directory as workspace")
	flags.StringVar(&q.LayerDir, "layer-dir", "", "a directory for layers on the workspace's file system")
	flags.StringVar(&q.User, "user", "", "run as this `user` (root only), or root")
	flags.StringSliceVar(&q.Require, "require", nil, "fail when this is missing: limits, proc, landlock")
}

// fillCreate completes a request with what only this process knows: whoever
// carries it out has another directory and another environment.
func fillCreate(q *api.Create, f *policyFlags, changed func(string) bool) error {
	for flag, value := range map[string]string{"name": q.Name, "workspace": q.Workspace, "layer-dir": q.LayerDir, "user": q.User} {
		if changed(flag) && value == "" {
			return invalid("--%s: it is empty; give a value, or leave the flag out", flag)
		}
	}
	var opts hutch.Options
	if err := f.request(&opts, changed); err != nil {
		return invalid("%v", err)
	}
	q.Policy, q.PolicyFile, q.Environ = opts.Policy, opts.PolicyFile, os.Environ()
	if q.Workspace == "" {
		q.Workspace = "."
	}
	for _, path := range []*string{&q.Workspace, &q.LayerDir, &q.PolicyFile} {
		if *path == "" {
			continue
		}
		abs, err := filepath.Abs(*path)
		if err != nil {
			return err
		}
		*path = abs
	}
	return nil
}

// tellNew prints what was made: its id alone, for a script to take.
func tellNew(asJSON bool, what any, id string) error {
	if asJSON {
		return printJSON(what)
	}
	_, err := fmt.Println(id)
	return err
}
