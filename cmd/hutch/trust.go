package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"hutch/internal/box"
	"hutch/internal/policy"
)

func trustCommand() *cobra.Command {
	var list, revoke bool
	cmd := &cobra.Command{
		Use:   "trust [DIR]",
		Short: "Let a workspace's own policy loosen",
		Long: `Let the .hutch.toml of a workspace (default: the current directory) allow more
than the user's own policy does. It holds for exactly the content that is there
now: one changed byte, and it may only tighten again. Read it first; what it
loosens is printed, and nothing is asked.`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			dir := "."
			if len(args) > 0 {
				dir = args[0]
			}
			switch {
			case list && (revoke || len(args) > 0):
				return errors.New("--list stands alone")
			case list:
				return listTrust()
			case dir == "":
				return errors.New("the directory's name is empty; give a directory")
			case revoke:
				path, was, err := box.Distrust(dir)
				if err == nil && !was {
					err = fmt.Errorf("nothing of %s is trusted; see hutch trust --list", path)
				}
				if err == nil {
					fmt.Printf("%s of %s may only tighten again\n", policy.WorkspaceFile, oneLine(path))
				}
				return err
			}
			path, loose, err := box.Trust(dir)
			if err != nil {
				return err
			}
			fmt.Printf("trusted: %s of %s, as it is now\n", policy.WorkspaceFile, oneLine(path))
			for _, o := range loose {
				fmt.Printf("loosens: %s = %s (%s)\n", o.Key, o.Value, o.Source)
			}
			if len(loose) == 0 {
				fmt.Println("it loosens nothing")
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&list, "list", false, "list the workspaces whose policy is trusted")
	cmd.Flags().BoolVar(&revoke, "revoke", false, "trust the workspace's policy no longer")
	return cmd
}

func listTrust() error {
	trusts, err := box.Trusts()
	for _, t := range trusts {
		fmt.Printf("%s  %s  %s\n", t.Time.Local().Format(time.DateTime), t.Digest, oneLine(t.Workspace))
	}
	return err
}
