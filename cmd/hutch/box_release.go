package main

import (
	"context"

	"github.com/spf13/cobra"
)

func boxReleaseCommand() *cobra.Command {
	var cmd *cobra.Command
	cmd = verb("release BOX", "End what runs in a box, and have the daemon let go of it", oneBoxWord, func(ctx context.Context, args []string) error {
		c, err := runningDaemon(ctx)
		if err == nil && c != nil {
			err = c.Release(ctx, args[0])
		}
		if err == nil && wantsJSON(cmd.Flags()) {
			return withBoxes(ctx, func(boxes quiet) error {
				b, err := boxes.Show(ctx, args[0])
				if err != nil {
					return err
				}
				return printJSON(b)
			})
		}
		return err
	})
	return cmd
}
