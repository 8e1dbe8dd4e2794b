package caddymodule

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/slotfleet/slotfleet/slotlog"
)

// logReport is what a log says: in all, or since the last report.
type logReport struct {
	At     time.Time           `json:"at"`
	Change bool                `json:"change,omitempty"` // only what changed
	Ports  []slotlog.PortState `json:"ports"`
	Tokens int64               `json:"generated_tokens"`

	// Requests are the tasks that ended since the last report, the last 1024 at most.
	Requests []slotlog.RequestRecord `json:"requests,omitempty"`

	*logCounts // nil with Change
}

type logCounts struct {
	Lines      uint64 `json:"lines"`
	Understood uint64 `json:"understood"`
	Unknown    uint64 `json:"unknown"`
	Degraded   bool   `json:"degraded"` // most of it is not understood

	// UnknownShapes are some lines about slots that were not understood, without
	// their numbers.
	UnknownShapes []string `json:"unknown_shapes"`
}

// empty reports whether there is nothing to print.
func (r logReport) empty() bool {
	return r.Change && len(r.Ports) == 0 && r.Tokens == 0 && len(r.Requests) == 0
}

// printSlotsJSON prints a report as one line.
func printSlotsJSON(w io.Writer, r logReport) error {
	if r.empty() {
		return nil
	}
	b, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("encoding the report: %w", err)
	}
	_, err = fmt.Fprintf(w, "%s\n", printableJSON(b))
	return err
}

// printSlots prints a report for people.
func printSlots(w io.Writer, r logReport) error {
	if r.empty() {
		return nil
	}
	if r.Change {
		return printChanges(w, r)
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	printPorts(t, r.Ports)
	fmt.Fprintf(t, "%s generated\n", plural(int(r.Tokens), "token"))
	fmt.Fprintf(t, "%s read, %s understood, %s unknown\n",
		plural(int(r.Lines), "line"), humanize.Comma(int64(r.Understood)), humanize.Comma(int64(r.Unknown)))
	if r.Degraded {
		fmt.Fprintln(t, "most of the last lines are not understood: is it the log of a llama-server?")
	}
	if len(r.UnknownShapes) > 0 {
		fmt.Fprintln(t, "lines about slots that are not understood:")
		for _, s := range r.UnknownShapes {
			fmt.Fprintf(t, "  %s\n", s)
		}
	}
	return t.Flush()
}

// printChanges prints a line for each slot that changed and for each task that ended.
func printChanges(w io.Writer, r logReport) error {
	at := r.At.Format(time.TimeOnly)
	for _, p := range r.Ports {
		if len(p.Slots) == 0 {
			if _, err := fmt.Fprintf(w, "%s  %s  no slots\n", at, portText(p.Port)); err != nil {
				return err
			}
		}
		for _, s := range p.Slots {
			_, err := fmt.Fprintf(w, "%s  %s  slot %d  %-10s  task %s  context %s  generated %s  %s tokens/s\n",
				at, portText(p.Port), s.Slot, s.State, taskText(s.Task), tokensText(s.PromptTokens), tokensText(s.Decoded), rateText(s.RateTps))
			if err != nil {
				return err
			}
		}
	}
	for _, q := range r.Requests {
		_, err := fmt.Fprintf(w, "%s  port %d  slot %d  task %d ended: %s  prompt %s  generated %s  %s tokens/s\n",
			at, q.Port, q.Slot, q.Task, q.Outcome, tokensText(q.PromptTokens), tokensText(q.Generated), rateText(q.Rate))
		if err != nil {
			return err
		}
	}
	return nil
}

// slotChanges tells what changed from one look to the next.
type slotChanges struct {
	last map[int][]slotlog.Slot // by port
}

// of returns the slots that are not as they were, and ports without any whose
// slots are gone.
func (c *slotChanges) of(ports []slotlog.PortState) []slotlog.PortState {
	now := make(map[int][]slotlog.Slot, len(ports))
	out := []slotlog.PortState{}
	for _, p := range ports {
		now[p.Port] = p.Slots
		before := c.last[p.Port]
		changed := []slotlog.Slot{}
		for _, s := range p.Slots {
			if !slices.ContainsFunc(before, func(b slotlog.Slot) bool { return sameSlot(b, s) }) {
				changed = append(changed, s)
			}
		}
		if len(changed) > 0 || len(before) > 0 && len(p.Slots) == 0 {
			p.Slots = changed
			out = append(out, p)
		}
	}
	for port, before := range c.last {
		if _, there := now[port]; !there && len(before) > 0 {
			out = append(out, slotlog.PortState{Port: port, Slots: []slotlog.Slot{}})
		}
	}
	slices.SortFunc(out, func(a, b slotlog.PortState) int { return a.Port - b.Port })
	c.last = now
	return out
}

func sameSlot(a, b slotlog.Slot) bool {
	return a.Slot == b.Slot && a.State == b.State && sameFigure(a.Task, b.Task) &&
		sameFigure(a.PromptTokens, b.PromptTokens) && sameFigure(a.Decoded, b.Decoded) && sameFigure(a.RateTps, b.RateTps)
}

func sameFigure[T comparable](a, b *T) bool {
	if a == nil || b == nil {
		return a == b
	}
	return *a == *b
}
