package caddymodule

import (
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/dustin/go-humanize"

	"github.com/slotfleet/slotfleet/slotlog"
)

// printPorts prints the servers of a log with a table of slots for each, to be aligned
// by a tabwriter.
func printPorts(w io.Writer, ports []slotlog.PortState) {
	for _, p := range ports {
		fmt.Fprintf(w, "%s%s\n", portText(p.Port), aboutPort(p))
		if len(p.Slots) > 0 {
			fmt.Fprintln(w, "  SLOT\tSTATE\tTASK\tCONTEXT\tPROMPT\tCACHED\tGENERATED\tTOKENS/S\tNOTE")
		}
		for _, s := range p.Slots {
			d := detailOf(p, s.Slot)
			fmt.Fprintf(w, "  %d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", s.Slot, stateText(s, d), taskText(s.Task),
				tokensText(s.PromptTokens), tokensText(d.PromptTokens), tokensText(d.CachedTokens),
				tokensText(s.Decoded), rateText(s.RateTps), noteText(d))
		}
		fmt.Fprintln(w)
	}
	if len(ports) == 0 {
		fmt.Fprint(w, "no slots seen\n\n")
	}
}

// portText names a server. Where a log never says a port, slotlog calls its server 1.
func portText(port int) string {
	if port == 1 {
		return "port unknown"
	}
	return fmt.Sprintf("port %d", port)
}

// detailOf is what else is known of a slot.
func detailOf(p slotlog.PortState, slot int) slotlog.Detail {
	for _, d := range p.Details {
		if d.Slot == slot {
			return d
		}
	}
	return slotlog.Detail{}
}

func aboutPort(p slotlog.PortState) string {
	s := ""
	if p.Model != "" {
		s += ", model " + printable(p.Model)
	}
	if p.Lanes > 0 {
		s += ", " + plural(p.Lanes, "slot")
	}
	if p.LaneContext > 0 {
		s += fmt.Sprintf(" of %s tokens", humanize.Comma(p.LaneContext))
	}
	switch p.Server.State {
	case slotlog.ServerLoading, slotlog.ServerSleeping, slotlog.ServerExited:
		s += ", " + string(p.Server.State)
	}
	if p.Server.LoadProgress != nil && p.Server.State == slotlog.ServerLoading {
		s += " " + percent(*p.Server.LoadProgress)
	}
	if p.Server.Backend != "" {
		s += ", " + string(p.Server.Backend)
	}
	return s
}

// stateText is the state of a slot, and which half of its work one that runs does.
func stateText(s slotlog.Slot, d slotlog.Detail) string {
	if s.State != slotlog.Processing || d.Phase != slotlog.PhasePrefill && d.Phase != slotlog.PhaseDecode {
		return string(s.State)
	}
	if d.Phase == slotlog.PhasePrefill && d.Progress != nil {
		return string(d.Phase) + " " + percent(*d.Progress)
	}
	return string(d.Phase)
}

// noteText is what is unusual about a slot.
func noteText(d slotlog.Detail) string {
	var notes []string
	if d.CancelPending {
		notes = append(notes, "cancelled")
	}
	if d.Failure != "" {
		notes = append(notes, string(d.Failure))
	}
	if d.Truncated {
		notes = append(notes, "prompt truncated")
	}
	if d.ContextShifts > 0 {
		notes = append(notes, plural(d.ContextShifts, "context shift"))
	}
	if len(notes) == 0 {
		return "-"
	}
	return strings.Join(notes, ", ")
}

func percent(share float64) string { return strconv.Itoa(int(share*100)) + "%" }

func taskText(n *int) string {
	if n == nil {
		return "-"
	}
	return strconv.Itoa(*n)
}

func tokensText(n *int64) string {
	if n == nil {
		return "-"
	}
	return humanize.Comma(*n)
}

func rateText(r *float64) string {
	if r == nil {
		return "-"
	}
	return strconv.FormatFloat(*r, 'f', 1, 64)
}
