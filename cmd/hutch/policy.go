package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"hutch"
	"hutch/internal/box"
)

func policyCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "policy",
		Short: "Show what a command may do, and why",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(policyShowCommand())
	return cmd
}

func policyShowCommand() *cobra.Command {
	var given policyFlags
	var workspace string
	var explain bool
	cmd := &cobra.Command{
		Use:   "show",
		Short: "Print the policy that would be in force, as a document",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			opts := hutch.Options{Workspace: workspace}
			if err := given.request(&opts, cmd.Flags().Changed); err != nil {
				return err
			}
			force, err := box.Policy(opts)
			if err != nil {
				return err
			}
			fmt.Print(force.TOML(explain))
			return nil
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.BoolVar(&explain, "explain", false, "say where each line comes from")
	flags.StringVar(&workspace, "workspace", "", "the workspace (default: the current directory)")
	given.add(flags)
	return cmd
}
