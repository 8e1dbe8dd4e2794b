package caddymodule

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	caddycmd "github.com/caddyserver/caddy/v2/cmd"

	"github.com/caddyserver/caddy/v2"

	"github.com/slotfleet/slotfleet/slotlog"
)

// exitDegraded says that the question was answered, and that the answer cannot be
// relied on.
const exitDegraded = 3

var slotsCommand = subcommand{
	use:   "slots [--json] [--address <interface>] [--config <path> [--adapter <name>]]",
	short: "Prints what the slots of all servers do, by their logs",
	long: `
Asks the admin API of a running Caddy for the slots that the logs of llama-servers
show, and prints a table for each server: what the slot does, its task, the tokens
it holds, the prompt and how much of that was in the cache, the tokens generated
and their speed. What is unknown is "-".

Exit codes:
  0  all logs can be relied on
  1  the admin API cannot be reached, or did not answer
  3  a log cannot be relied on, or none is read
`,
	flags: func(cmd *cobra.Command) {
		adminFlags(cmd)
		jsonFlag(cmd)
	},
	run: cmdSlots,
}

func cmdSlots(fl caddycmd.Flags) (int, error) {
	var all allSlots
	raw, err := askAdmin(fl, http.MethodGet, "/slotlog/slots", nil, &all)
	if err != nil {
		return caddy.ExitCodeFailedStartup, err
	}
	if fl.Bool("json") {
		_, err = fmt.Fprintf(os.Stdout, "%s\n", printableJSON(raw))
	} else {
		err = all.write(os.Stdout)
	}
	if err != nil {
		return caddy.ExitCodeFailedStartup, fmt.Errorf("printing the slots: %w", err)
	}
	if !all.whole() {
		return exitDegraded, nil
	}
	return caddy.ExitCodeSuccess, nil
}

// whole reports whether there is a log, and all of them can be relied on.
func (a allSlots) whole() bool {
	for _, s := range a.Sources {
		if s.Degraded {
			return false
		}
	}
	return len(a.Sources) > 0
}

func (a allSlots) write(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, s := range a.Sources {
		fmt.Fprintf(t, "source %s%s\n", printable(strings.Join(append([]string{s.Source}, s.Also...), ", ")), s.about())
		ports := make([]slotlog.PortState, 0, len(s.Ports))
		for _, p := range s.Ports {
			ports = append(ports, slotlog.PortState{
				Port: p.Port, Model: p.Model, Lanes: p.Server.Lanes, LaneContext: p.Server.LaneContext,
				Slots: p.Slots, Server: p.Server, Details: p.Details,
			})
		}
		printPorts(t, ports)
	}
	if len(a.Sources) == 0 {
		fmt.Fprintln(t, "no log is read")
	}
	return t.Flush()
}

func (s sourceSlots) about() string {
	about := ""
	if s.Node != "" && s.Node != s.Source {
		about += ", of node " + printable(s.Node)
	}
	if s.Age != nil {
		about += fmt.Sprintf(", read %s ago", time.Duration(*s.Age*float64(time.Second)).Round(time.Second))
	}
	if s.Degraded {
		about += ", not reliable: " + printable(s.Reason)
	}
	return about
}
