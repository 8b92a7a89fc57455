package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"hutch"
	"hutch/internal/box"
	"hutch/internal/policy"
)

func policyCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "policy",
		Short: "Show what a command may do, and why",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(policyShowCommand(), policyProfilesCommand(), policySchemaCommand())
	return cmd
}

func policyProfilesCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "profiles [NAME]",
		Short: "List the profiles, or print one with the reason of each line",
		Args:  cobra.MaximumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				text, err := policy.ProfileText(args[0])
				fmt.Print(text)
				return err
			}
			for _, name := range policy.Profiles() {
				text, err := policy.ProfileText(name)
				if err != nil {
					return err
				}
				first, _, _ := strings.Cut(text, "\n")
				fmt.Printf("%-14s %s\n", name, strings.TrimPrefix(first, "# "))
			}
			return nil
		},
	}
}

func policySchemaCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "schema",
		Short: "Print the JSON Schema of a policy",
		Args:  cobra.NoArgs,
		RunE: func(_ *cobra.Command, _ []string) error {
			_, err := os.Stdout.Write(policy.Schema())
			return err
		},
	}
}

func policyShowCommand() *cobra.Command {
	var given policyFlags
	var workspace string
	var explain, asJSON bool
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
			switch {
			case asJSON && explain:
				return printJSON(struct {
					Policy  hutch.Policy    `json:"policy"`
					Origins []policy.Origin `json:"origins"`
					Notes   []string        `json:"notes"`
				}{force.Document(), force.Origins, append([]string{}, force.Notes...)})
			case asJSON:
				return printJSON(force.Document())
			}
			fmt.Print(force.TOML(explain))
			if !explain {
				for _, note := range force.Notes {
					fmt.Fprintln(os.Stderr, "hutch: "+oneLine(note))
				}
			}
			return nil
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.BoolVar(&explain, "explain", false, "say where each line comes from")
	flags.BoolVar(&asJSON, "json", false, "print JSON")
	flags.StringVar(&workspace, "workspace", "", "the workspace (default: the current directory)")
	given.add(flags)
	return cmd
}
