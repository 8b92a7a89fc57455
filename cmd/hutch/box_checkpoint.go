package main

import (
	"context"

	"github.com/spf13/cobra"
)

func boxCheckpointCommand() *cobra.Command {
	var cmd *cobra.Command
	cmd = verb("checkpoint BOX [NAME]", "Note a state that a box can go back to, and print its name", words{1, 2, "give a box and, if you like, a name for the checkpoint"},
		func(ctx context.Context, args []string) error {
			name := ""
			if len(args) == 2 {
				if name = args[1]; name == "" {
					return invalid("the name of the checkpoint is empty; give one, or leave it out")
				}
			}
			return withBoxes(ctx, func(boxes quiet) error {
				c, err := boxes.Checkpoint(ctx, args[0], name)
				if err != nil {
					return err
				}
				return tellNew(wantsJSON(cmd.Flags()), c, c.Name)
			})
		})
	return cmd
}
