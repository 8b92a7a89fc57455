package main

import (
	"context"

	"github.com/spf13/cobra"
)

func discardCommand() *cobra.Command {
	var force bool
	var cmd *cobra.Command
	cmd = verb("discard BOX", "Drop a box; the workspace is not touched", oneBoxWord, func(ctx context.Context, args []string) error {
		err := withBoxes(ctx, func(boxes quiet) error { return boxes.Discard(ctx, args[0], force) })
		if err == nil && wantsJSON(cmd.Flags()) {
			return printJSON(struct {
				Discarded string `json:"discarded"`
			}{args[0]})
		}
		return err
	})
	cmd.Flags().BoolVar(&force, "force", false, "end what runs in it")
	return cmd
}
