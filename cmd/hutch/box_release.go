package main

import (
	"context"

	"github.com/spf13/cobra"
)

func boxReleaseCommand() *cobra.Command {
	var cmd *cobra.Command
	cmd = verb("release BOX", "Have the daemon let go of a box, ending what was left running in it", oneBoxWord, func(ctx context.Context, args []string) error {
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
	cmd.Long = `Have the daemon let go of a box: what commands left running ends, with its /tmp and
HOME, and another process can take the box. While a command runs it is refused:
wait for it, or end it with ` + "`hutch box kill`" + `.`
	return cmd
}
