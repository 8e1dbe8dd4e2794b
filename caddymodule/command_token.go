package caddymodule

import (
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	caddycmd "github.com/caddyserver/caddy/v2/cmd"

	"github.com/caddyserver/caddy/v2"

	"github.com/slotfleet/slotfleet/linkf"
)

var tokenCommand = subcommand{
	use:   "token [<file>]",
	short: "Makes a token that a fleet and its nodes share",
	long: `
Draws a token for the options of the same name in fleet and fleet_node, and prints it,
or writes it to a new file that nobody but its owner may read. A file that is there
already is left as it is. Nobody is asked.

Exit codes:
  0  the token was printed or written
  1  the file could not be written
`,
	args: cobra.MaximumNArgs(1),
	run: func(fl caddycmd.Flags) (int, error) {
		if err := writeToken(os.Stdout, fl.Arg(0)); err != nil {
			return caddy.ExitCodeFailedStartup, fmt.Errorf("making a token: %w", err)
		}
		return caddy.ExitCodeSuccess, nil
	},
}

// writeToken draws a token and writes it to a new file, or to w if none is named.
func writeToken(w io.Writer, file string) error {
	token := linkf.NewToken() + "\n"
	if file == "" {
		_, err := io.WriteString(w, token)
		return err
	}
	f, err := os.OpenFile(file, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString(token)
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	return err
}
