package caddymodule

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	caddycmd "github.com/caddyserver/caddy/v2/cmd"

	"github.com/caddyserver/caddy/v2"

	"github.com/slotfleet/slotfleet/fleet"
)

// exitNotServing says that the question was answered, and that the answer is bad.
const exitNotServing = 3

var statusCommand = subcommand{
	use:   "status [--json] [--address <interface>] [--config <path> [--adapter <name>]]",
	short: "Prints the nodes of the running fleet, their models, load and outages",
	long: `
Asks the admin API of a running Caddy for its nodes and prints them, a line for
each model of a node: lanes that Caddy holds of those there are, context of one
lane in tokens, what the node itself says it runs and how old that word is, and
its speeds in tokens per second (prefill/decode). What is unknown is "-".

Exit codes:
  0  every model has an instance that is ready
  1  the admin API cannot be reached, or did not answer
  3  a model has none, or nothing is served at all
`,
	flags: func(cmd *cobra.Command) {
		adminFlags(cmd)
		jsonFlag(cmd)
	},
	run: cmdStatus,
}

func cmdStatus(fl caddycmd.Flags) (int, error) {
	s, raw, err := askStatus(fl)
	if err != nil {
		return caddy.ExitCodeFailedStartup, err
	}
	if fl.Bool("json") {
		_, err = fmt.Fprintf(os.Stdout, "%s\n", printableJSON(raw))
	} else {
		err = s.write(os.Stdout, time.Now())
	}
	if err != nil {
		return caddy.ExitCodeFailedStartup, fmt.Errorf("printing the status: %w", err)
	}
	if !s.serves() {
		return exitNotServing, nil
	}
	return caddy.ExitCodeSuccess, nil
}

// fleetStatus is [fleet.Status] as it is read back.
type fleetStatus struct {
	fleet.Status
	Nodes []nodeStatus `json:"nodes"`
}

type nodeStatus struct {
	fleet.NodeStatus
	Instances []instanceStatus `json:"instances"`
}

type instanceStatus struct {
	fleet.InstanceStatus
	State string `json:"state"`
}

// askStatus asks the admin API that the flags name, and returns its answer as it
// came, too.
func askStatus(fl caddycmd.Flags) (fleetStatus, []byte, error) {
	var s fleetStatus
	raw, err := askAdmin(fl, http.MethodGet, "/fleet/nodes", nil, &s)
	return s, raw, err
}

// serves reports whether something is served, and every model by an instance that
// is ready.
func (s fleetStatus) serves() bool {
	for _, m := range s.Serving {
		if m.Ready == 0 {
			return false
		}
	}
	return len(s.Serving) > 0
}

func (s fleetStatus) write(w io.Writer, now time.Time) error {
	if _, err := fmt.Fprintln(w, s.headline()); err != nil {
		return err
	}
	if len(s.Nodes) == 0 {
		return nil
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "\nNODE\tSTATE\tMODEL\tLANES\tCONTEXT\tLOAD\tSPEED")
	for _, n := range s.Nodes {
		for _, row := range n.rows(now) {
			fmt.Fprintln(t, strings.Join(row, "\t"))
		}
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, n := range s.Nodes {
		if n.Down != nil {
			if _, err := fmt.Fprintf(w, "\n%s\n", n.outage(now)); err != nil {
				return err
			}
		}
		if x := n.Namesake; x != nil {
			_, err := fmt.Fprintf(w, "\nanother node that calls itself %s dials in from %s and is turned away: give one of the two another identity\n",
				printable(n.Name), printable(x.Address))
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// headline is the answer in one line.
func (s fleetStatus) headline() string {
	var b strings.Builder
	if s.Known == 0 {
		return "no nodes: the running configuration names none"
	}
	fmt.Fprintf(&b, "%d of %d nodes up; serving ", s.Up, s.Known)
	var ready, missing []string
	for _, m := range s.Serving {
		name := printable(m.Model)
		if m.Ready == 0 {
			missing = append(missing, name)
			continue
		}
		ready = append(ready, fmt.Sprintf("%s (%s)", name, plural(m.Lanes, "lane")))
	}
	if len(ready) == 0 {
		b.WriteString("nothing")
	}
	b.WriteString(strings.Join(ready, ", "))
	if len(missing) > 0 {
		b.WriteString("; not ready: " + strings.Join(missing, ", "))
	}
	if s.Waiting > 0 {
		b.WriteString("; " + plural(s.Waiting, "request") + " waiting for a lane")
	}
	return b.String()
}

// rows are the node's lines of the table.
func (n nodeStatus) rows(now time.Time) [][]string {
	name := printable(n.Name)
	if len(n.Instances) == 0 {
		state := "up"
		switch {
		case n.Down != nil:
			state = "down"
		case !n.Up:
			state = "not seen yet"
		}
		return [][]string{{name, state, "-", "-", "-", "-", "-"}}
	}
	rows := make([][]string, 0, len(n.Instances))
	for _, i := range n.Instances {
		state, said := printable(i.State), loadText(i.Load, now)
		switch {
		case !n.Up:
			state, said = "down", "-"
		case n.Drain != nil && n.Drain.Drained:
			state = "drained"
		case n.Drain != nil:
			state = "draining"
		}
		rows = append(rows, []string{
			name, state, printable(i.Model),
			fmt.Sprintf("%d/%s", i.LanesActive, orDash(i.Lanes > 0, strconv.Itoa(i.Lanes))),
			orDash(i.Context > 0, humanize.Comma(int64(i.Context))),
			said,
			speedText(i.PrefillRate, i.DecodeRate),
		})
	}
	return rows
}

// outage says in words what is wrong with a node that is down.
func (n nodeStatus) outage(now time.Time) string {
	d := n.Down
	s := fmt.Sprintf("%s has been down for %s (%s)", printable(n.Name), shortSpan(now.Sub(d.Since)), printable(string(d.Cause)))
	if d.Error != "" {
		s += ": " + printable(strings.TrimPrefix(d.Error, fmt.Sprintf("node %s lost: %s: ", n.Name, d.Cause)))
	}
	if d.NextProbe.After(now) {
		s += "; next try in " + shortSpan(d.NextProbe.Sub(now))
	}
	return s
}

func loadText(l *fleet.LoadStatus, now time.Time) string {
	if l == nil {
		return "-"
	}
	s := fmt.Sprintf("%d active, %s old", l.Active, shortSpan(now.Sub(l.At)))
	if !l.Fresh {
		s += " (too old to count)"
	}
	return s
}

func speedText(prefill, decode float64) string {
	if prefill == 0 && decode == 0 {
		return "-"
	}
	rate := func(r float64) string { return orDash(r > 0, strconv.FormatFloat(r, 'f', digits(r), 64)) }
	return rate(prefill) + "/" + rate(decode)
}

// digits is how many decimals of a speed say something.
func digits(r float64) int {
	if r < 100 {
		return 1
	}
	return 0
}

func orDash(ok bool, s string) string {
	if !ok {
		return "-"
	}
	return s
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return humanize.Comma(int64(n)) + " " + what + "s"
}

// shortSpan is a duration in seconds where that is short, else in words.
func shortSpan(d time.Duration) string {
	if d < 100*time.Second {
		return fmt.Sprintf("%ds", int(max(0, d).Round(time.Second)/time.Second))
	}
	now := time.Now()
	return strings.TrimSpace(humanize.RelTime(now.Add(-d), now, "", ""))
}
