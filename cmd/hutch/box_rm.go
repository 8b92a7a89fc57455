package main

import (
	"context"
	"errors"

	"github.com/spf13/cobra"
)

func boxRemoveCommand() *cobra.Command {
	var cmd *cobra.Command
	cmd = verb("rm BOX...", "Remove boxes, and all that runs in them", words{1, -1, "give at least one box; see `hutch box list`"}, func(ctx context.Context, args []string) error {
		removed := []string{}
		err := withBoxes(ctx, func(boxes quiet) error {
			var errs []error
			for _, id := range args {
				err := boxes.Remove(ctx, id)
				if err == nil {
					removed = append(removed, id)
				}
				errs = append(errs, err)
			}
			return errors.Join(errs...)
		})
		if err == nil && wantsJSON(cmd.Flags()) {
			return printJSON(struct {
				Removed []string `json:"removed"`
			}{removed})
		}
		return err
	})
	return cmd
}
