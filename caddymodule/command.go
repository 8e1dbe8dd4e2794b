package caddymodule

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/spf13/cobra"

	caddycmd "github.com/caddyserver/caddy/v2/cmd"
)

func init() {
	caddycmd.RegisterCommand(caddycmd.Command{
		Name:  "fleet",
		Usage: "<command>",
		Short: "Looks at a fleet of llama.cpp servers, reads their logs, tries one out",
		Long: `
Commands for a fleet of llama.cpp servers behind Caddy.

What a command found goes to standard output, what it has to say about its work
to standard error. With --json, the output is for scripts.
`,
		CobraFunc: setUpFleetCommand,
	})
}

func setUpFleetCommand(cmd *cobra.Command) {
	cmd.Args = cobra.NoArgs // else a misspelt command prints help and succeeds
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	for _, c := range fleetCommands {
		cmd.AddCommand(c.cobra())
	}
}

// fleetCommands are the commands under `caddy fleet`. Each has a file of its own.
var fleetCommands = []subcommand{
	statusCommand,
	sessionsCommand,
	drainCommand,
	undrainCommand,
	cancelCommand,
	parkCommand,
	resumeCommand,
	moveCommand,
	slotsCommand,
	loraCommand,
	keyCommand,
	tokenCommand,
	readLogCommand,
	llamasimCommand,
	demoCommand,
}

// subcommand is one command under `caddy fleet`.
type subcommand struct {
	use, short, long string

	args  cobra.PositionalArgs // nil: none are taken
	flags func(*cobra.Command)
	run   caddycmd.CommandFunc
	below []subcommand
}

func (s subcommand) cobra() *cobra.Command {
	cmd := &cobra.Command{Use: s.use, Short: s.short, Long: s.long, Args: s.args}
	if cmd.Args == nil {
		cmd.Args = cobra.NoArgs
	}
	if s.flags != nil {
		s.flags(cmd)
	}
	run := caddycmd.WrapCommandFuncForCobra(s.run)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		cmd.SilenceErrors = true // an exit code above 1 may come without an error
		return run(cmd, args)
	}
	for _, c := range s.below {
		cmd.AddCommand(c.cobra())
	}
	return cmd
}

// adminFlags are those by which Caddy's own commands find the admin API.
func adminFlags(cmd *cobra.Command) {
	cmd.Flags().String("address", "", "The address of the admin API, if not in the config or the default")
	cmd.Flags().StringP("config", "c", "", "Config file that names the admin address")
	cmd.Flags().StringP("adapter", "a", "", "Name of the adapter for the config file")
}

// jsonFlag asks for output for scripts.
func jsonFlag(cmd *cobra.Command) {
	cmd.Flags().Bool("json", false, "Print JSON")
}

// printable makes text of others fit for a terminal: what is not printed, or
// changes how something is printed, is shown as an escape.
func printable(s string) string {
	if strings.IndexFunc(s, unprintable) < 0 {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		if !unprintable(r) {
			b.WriteRune(r)
			continue
		}
		q := strconv.QuoteRuneToASCII(r)
		b.WriteString(q[1 : len(q)-1])
	}
	return b.String()
}

func unprintable(r rune) bool { return r == unicode.ReplacementChar || !unicode.IsPrint(r) }

// printableJSON is printable for encoded JSON, which means the same afterwards:
// outside of ASCII it has nothing but the inside of strings.
func printableJSON(b []byte) []byte {
	out := make([]byte, 0, len(b))
	for _, r := range string(b) {
		if r < 0x7f || !unprintable(r) {
			out = utf8.AppendRune(out, r)
			continue
		}
		for _, u := range utf16.Encode([]rune{r}) {
			out = fmt.Appendf(out, `\u%04x`, u)
		}
	}
	return out
}
