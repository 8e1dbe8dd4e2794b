package caddymodule

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"text/tabwriter"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	caddycmd "github.com/caddyserver/caddy/v2/cmd"

	"github.com/caddyserver/caddy/v2"

	"github.com/slotfleet/slotfleet/fleet"
)

const adminUsage = "[--json] [--address <interface>] [--config <path> [--adapter <name>]]"

var sessionsCommand = subcommand{
	use:   "sessions " + adminUsage,
	short: "Prints the requests that the running fleet works on",
	long: `
Asks the admin API of a running Caddy for the requests that run or wait, and
prints a line for each: its id, what it does (queued, prefill, decode, parked),
model, node, class, how long ago it came, what its client has of the answer, and
how often it went on elsewhere.

Exit codes:
  0  they were printed, even if there are none
  1  the admin API cannot be reached, or did not answer
`,
	flags: adminAndJSON,
	run:   cmdSessions,
}

func adminAndJSON(cmd *cobra.Command) {
	adminFlags(cmd)
	jsonFlag(cmd)
}

// sessionStatus is [fleet.SessionStatus] as it is read back.
type sessionStatus struct {
	fleet.SessionStatus
	State string `json:"state"`
}

type sessionList struct {
	Sessions []sessionStatus `json:"sessions"`
}

func cmdSessions(fl caddycmd.Flags) (int, error) {
	var list sessionList
	raw, err := askAdmin(fl, http.MethodGet, "/fleet/sessions", nil, &list)
	if err == nil {
		err = show(fl, raw, func(w io.Writer) error { return list.write(w, time.Now()) })
	}
	if err != nil {
		return caddy.ExitCodeFailedStartup, err
	}
	return caddy.ExitCodeSuccess, nil
}

func (l sessionList) write(w io.Writer, now time.Time) error {
	if len(l.Sessions) == 0 {
		_, err := fmt.Fprintln(w, "no request runs or waits")
		return err
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "SESSION\tSTATE\tMODEL\tNODE\tCLASS\tAGE\tDELIVERED\tMOVES")
	for _, s := range l.Sessions {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%d\t%s\t%s\t%s\n",
			printable(s.ID), printable(s.State),
			orDash(s.Model != "", printable(s.Model)), orDash(s.Node != "", printable(s.Node)),
			s.Class, shortSpan(now.Sub(s.Began)),
			humanize.IBytes(uint64(max(0, s.DeliveredBytes))), strconv.Itoa(s.Moves))
	}
	return t.Flush()
}

var (
	cancelCommand = sessionCommand("cancel", "Ends a request, whatever it does", `
Ends a request, whatever it does: its client gets an error.`)
	parkCommand = sessionCommand("park", "Takes a request off its lane until it is resumed", `
Frees the lane of a request and keeps what its client has, until it is resumed.
Refused if the answer cannot go on exactly. A request that nobody resumes ends
with an error, ten minutes and the queue's timeout after it came.`)
	resumeCommand = sessionCommand("resume", "Lets a parked request go on", `
Lets a parked request go on, where a lane is free first.`)
	moveCommand = sessionCommand("move", "Lets another node go on with a request", `
Lets another node go on with a request, without a gap. Refused if the answer
cannot go on exactly, or if no other node has a free lane for it.`)
)

// sessionCommand makes a command that does something to one session.
func sessionCommand(action, short, long string) subcommand {
	return subcommand{
		use:   action + " <session> " + adminUsage,
		short: short,
		long: long + `
'caddy fleet sessions' prints the ids.

Exit codes:
  0  it is done
  1  no request that runs has this id, or the admin API cannot be reached
  3  it was refused; the message says why
`,
		args:  cobra.ExactArgs(1),
		flags: adminAndJSON,
		run: func(fl caddycmd.Flags) (int, error) {
			var s sessionStatus
			raw, err := post(fl, "/fleet/control/sessions/"+url.PathEscape(fl.Arg(0))+"/"+action, &s)
			if err == nil {
				err = show(fl, raw, s.write)
			}
			return exitOf(err), err
		},
	}
}

func (s sessionStatus) write(w io.Writer) error {
	text := fmt.Sprintf("session %s: %s", printable(s.ID), printable(s.State))
	switch {
	case s.Node == "":
	case s.State == "parked" || s.State == "queued":
		text += ", last on node " + printable(s.Node)
	default:
		text += ", on node " + printable(s.Node)
	}
	_, err := fmt.Fprintln(w, text)
	return err
}
