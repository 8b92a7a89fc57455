package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"hutch/internal/api"
)

func boxForkCommand() *cobra.Command {
	n := 1
	var name string
	var cmd *cobra.Command
	cmd = verb("fork BOX", "Make boxes that go on from the state of this one, and print their ids", oneBoxWord, func(ctx context.Context, args []string) error {
		if n < 1 || n > 1000 {
			return invalid("-n %d: give 1 to 1000", n)
		}
		if cmd.Flags().Changed("name") && name == "" {
			return invalid("--name: it is empty; give a name, or leave the flag out")
		}
		return withBoxes(ctx, func(boxes quiet) error {
			list, err := boxes.Fork(ctx, args[0], n, numbered(name, n))
			if err != nil {
				return err
			}
			if wantsJSON(cmd.Flags()) {
				return printJSON(append([]api.Box{}, list...))
			}
			for _, b := range list {
				fmt.Println(b.ID)
			}
			return nil
		})
	})
	cmd.Flags().IntVarP(&n, "count", "n", 1, "how many")
	cmd.Flags().StringVar(&name, "name", "", "a name; of several NAME-1, NAME-2 and so on")
	return cmd
}

// numbered are names for n of something.
func numbered(name string, n int) []string {
	if name == "" {
		return nil
	}
	if n == 1 {
		return []string{name}
	}
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("%s-%d", name, i+1)
	}
	return names
}
