package caddymodule

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	caddycmd "github.com/caddyserver/caddy/v2/cmd"

	"github.com/caddyserver/caddy/v2"
)

var keyCommand = subcommand{
	use:   "key <name>",
	short: "Makes a key, and its entry for a file of keys",
	long: `
Draws a secret for the key of this name, and prints it, and on a second line what
goes into the file of keys: the name and a hash of the secret. The secret is kept
nowhere; who is to have the key needs it now. It writes no file and asks nobody.

Exit codes:
  0  the key was printed
  1  the name cannot be that of a key
`,
	args: cobra.ExactArgs(1),
	run: func(fl caddycmd.Flags) (int, error) {
		if err := printKey(os.Stdout, fl.Arg(0)); err != nil {
			return caddy.ExitCodeFailedStartup, fmt.Errorf("making a key: %w", err)
		}
		return caddy.ExitCodeSuccess, nil
	},
}

// printKey draws a secret of 256 bits and a little and prints it with its entry.
func printKey(w io.Writer, name string) error {
	if err := checkKeyName(name); err != nil {
		return err
	}
	secret := "sk-" + rand.Text() + rand.Text()
	entry, err := json.Marshal(keyEntry{Name: name, Hashes: []string{hashOf(secret).String()}})
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "%s\n%s\n", secret, printableJSON(entry))
	return err
}
