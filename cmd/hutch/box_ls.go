package main

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"hutch/internal/api"
)

func boxLsCommand() *cobra.Command {
	var long bool
	var cmd *cobra.Command
	cmd = verb("ls BOX [PATH]", "List a directory of a box", words{1, 2, "give a box and, for other than the workspace, a directory in it"}, func(ctx context.Context, args []string) error {
		path := "."
		if len(args) == 2 {
			path = args[1]
		}
		c, err := liveDaemon(ctx)
		if err != nil {
			return err
		}
		list, err := c.ListDir(ctx, args[0], path)
		if err != nil {
			return err
		}
		if wantsJSON(cmd.Flags()) {
			return printJSON(append([]api.File{}, list...))
		}
		table := tabwriter.NewWriter(os.Stdout, 0, 8, 1, ' ', 0)
		for _, f := range list {
			name := oneLine(f.Name)
			switch {
			case f.Type == "directory":
				name += "/"
			case f.Type == "symlink" && long:
				name += " -> " + oneLine(f.Target)
			}
			if long {
				fmt.Fprintf(table, "%s\t%d\t%s\t", kindOf(f), f.Size, f.ModTime.Local().Format(time.DateTime))
			}
			fmt.Fprintln(table, name)
		}
		return table.Flush()
	})
	cmd.Long = `List a directory of a box, the workspace by default. A path that is not absolute
begins there.`
	cmd.Flags().BoolVarP(&long, "long", "l", false, "with modes, sizes and times")
	return cmd
}

func kindOf(f api.File) string {
	mode := fs.FileMode(f.Mode & 0o777)
	switch f.Type {
	case "directory":
		mode |= fs.ModeDir
	case "symlink":
		mode |= fs.ModeSymlink
	case "other":
		mode |= fs.ModeIrregular
	}
	return mode.String()
}
