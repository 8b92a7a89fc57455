package main

import (
	"context"
	"io"
	"os"

	"github.com/spf13/cobra"

	"hutch/internal/api"
	"hutch/internal/term"
)

func boxCatCommand() *cobra.Command {
	var cmd *cobra.Command
	cmd = verb("cat BOX PATH", "Print a file of a box", words{2, 2, "give a box and the path of a file in it"}, func(ctx context.Context, args []string) error {
		c, err := liveDaemon(ctx)
		if err != nil {
			return err
		}
		r, err := c.ReadFile(ctx, args[0], args[1])
		if err != nil {
			return err
		}
		defer r.Close()
		if wantsJSON(cmd.Flags()) {
			return catJSON(args[1], r)
		}
		w := showing(os.Stdout, term.Lines)
		defer w.Close()
		_, err = io.Copy(w, r)
		return err
	})
	cmd.Long = `Print a file of a box. A path that is not absolute begins in the workspace.`
	return cmd
}

// mostJSON bounds a file that goes into a JSON object, in bytes.
const mostJSON = 64 << 20

func catJSON(path string, r io.Reader) error {
	content, err := io.ReadAll(io.LimitReader(r, mostJSON+1))
	if err != nil {
		return err
	}
	if len(content) > mostJSON {
		return &api.Error{Code: api.Invalid, Text: "the file is too large for --json; leave that out"}
	}
	return printJSON(struct {
		Path   string `json:"path"`
		Size   int    `json:"size"`
		Base64 []byte `json:"base64"`
	}{path, len(content), content})
}
