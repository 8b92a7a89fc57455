package main

import (
	"context"

	"github.com/spf13/cobra"
)

func boxRestoreCommand() *cobra.Command {
	var cmd *cobra.Command
	cmd = verb("restore BOX NAME", "Take a box back to a checkpoint", words{2, 2, "give a box and the name of a checkpoint; see `hutch box show BOX`"}, func(ctx context.Context, args []string) error {
		return withBoxes(ctx, func(boxes quiet) error {
			if err := boxes.Restore(ctx, args[0], args[1]); err != nil || !wantsJSON(cmd.Flags()) {
				return err
			}
			b, err := boxes.Show(ctx, args[0])
			if err != nil {
				return err
			}
			return printJSON(b)
		})
	})
	cmd.Long = `Take the files of a box back to a checkpoint. Nothing may run in it: end that with
` + "`hutch box kill`" + ` first.`
	return cmd
}
