package main

import (
	"context"
	"io"
	"os"
	"strconv"

	"github.com/spf13/cobra"
)

func boxWriteCommand() *cobra.Command {
	var mode string
	var cmd *cobra.Command
	cmd = verb("write BOX PATH", "Write standard input to a file of a box", words{2, 2, "give a box and the path of a file in it"}, func(ctx context.Context, args []string) error {
		var bits uint64
		if cmd.Flags().Changed("mode") {
			var err error
			if bits, err = strconv.ParseUint(mode, 8, 32); err != nil || bits == 0 || bits > 0o777 {
				return invalid("--mode %q: give permission bits in octal, such as 644", mode)
			}
		}
		c, err := liveDaemon(ctx)
		if err != nil {
			return err
		}
		in := &tally{r: os.Stdin}
		if err := c.WriteFile(ctx, args[0], args[1], uint32(bits), in); err != nil {
			return err
		}
		if wantsJSON(cmd.Flags()) {
			return printJSON(struct {
				Path string `json:"path"`
				Size int64  `json:"size"`
			}{args[1], in.n})
		}
		return nil
	})
	cmd.Long = `Write standard input to a file of a box. A path that is not absolute begins in the
workspace.`
	cmd.Flags().StringVar(&mode, "mode", "", "its permission `bits`, in octal (default: 644 for a new file)")
	return cmd
}

// tally counts what is read.
type tally struct {
	r io.Reader
	n int64
}

func (t *tally) Read(p []byte) (int, error) {
	n, err := t.r.Read(p)
	t.n += int64(n)
	return n, err
}
