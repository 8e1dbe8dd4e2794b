package slotlog

import (
	"fmt"
	"strings"
	"time"
)

// inWords says what a tracker knows, one line a server, slot or record, so that a
// table can hold it.
func inWords(tr *Tracker, now time.Time) string {
	var b strings.Builder
	for _, port := range tr.Servers() {
		s := tr.Server(port)
		fmt.Fprintf(&b, "port %d %s", port, s.State)
		word(&b, "model", s.Model, s.Model != "")
		word(&b, "lanes", s.Lanes, s.Lanes > 0)
		word(&b, "context", s.LaneContext, s.LaneContext > 0)
		figureWord(&b, "unified", s.KVUnified)
		figureWord(&b, "loaded", s.LoadProgress)
		word(&b, "restarts", s.Restarts, s.Restarts > 0)
		word(&b, "backend", s.Backend, s.Backend != "")
		word(&b, "children", s.Children, s.Children != nil)
		b.WriteByte('\n')
		for _, d := range tr.Details(port, now) {
			fmt.Fprintf(&b, "  slot %d %s", d.Slot, d.Phase)
			figureWord(&b, "task", d.Task)
			figureWord(&b, "prompt", d.PromptTokens)
			figureWord(&b, "processed", d.PromptProcessed)
			figureWord(&b, "progress", d.Progress)
			figureWord(&b, "cached", d.CachedTokens)
			figureWord(&b, "likeness", d.Similarity)
			figureWord(&b, "kept", d.KeptShare)
			figureWord(&b, "gen", d.Generated)
			figureWord(&b, "rate", d.Rate)
			figureWord(&b, "now", d.RateNow)
			figureWord(&b, "holds", d.ContextUsed)
			figureWord(&b, "of", d.ContextSize)
			word(&b, "shifts", d.ContextShifts, d.ContextShifts > 0)
			word(&b, "truncated", "", d.Truncated)
			figureWord(&b, "draft", d.DraftAccepted)
			word(&b, "cancel", "", d.CancelPending)
			word(&b, "failure", d.Failure, d.Failure != "")
			b.WriteByte('\n')
		}
	}
	for _, r := range append(tr.TakeRecords(), tr.TakeRecords()...) {
		fmt.Fprintf(&b, "task %d of slot %d %s", r.Task, r.Slot, r.Outcome)
		word(&b, "failure", r.Failure, r.Failure != "")
		figureWord(&b, "prompt", r.PromptTokens)
		figureWord(&b, "processed", r.PromptProcessed)
		figureWord(&b, "cached", r.CachedTokens)
		figureWord(&b, "gen", r.Generated)
		figureWord(&b, "prefill", r.PrefillRate)
		figureWord(&b, "rate", r.Rate)
		figureWord(&b, "draft", r.DraftAccepted)
		b.WriteByte('\n')
	}
	return strings.ReplaceAll(b.String(), " \n", "\n")
}

func word(b *strings.Builder, name string, v any, known bool) {
	if known {
		fmt.Fprintf(b, " %s %v", name, v)
	}
}

func figureWord[T any](b *strings.Builder, name string, v *T) {
	if v != nil {
		fmt.Fprintf(b, " %s %v", name, *v)
	}
}

// eventWords says what an event says.
func eventWords(e Event) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s", e.Kind)
	word(&b, "port", e.Port, e.Port != 1)
	word(&b, "slot", e.Slot, e.Slot >= 0)
	word(&b, "task", e.Task, e.Task >= 0)
	word(&b, "tokens", e.Tokens, e.HasTokens)
	word(&b, "count", e.Count, e.Count != 0 && e.Kind != KindModel)
	word(&b, "rate", e.Rate, e.HasRate)
	word(&b, "mean", e.Mean, e.HasMean)
	word(&b, "share", e.Share, e.HasShare)
	word(&b, "kept", e.Kept, e.Kept > 0)
	word(&b, "own", "", e.Own)
	word(&b, "truncated", "", e.Truncated)
	word(&b, "lanes", e.Lanes, e.Lanes > 0)
	word(&b, "pool", e.Pool, e.Pool != PoolUnknown)
	word(&b, "model", e.Model, e.Model != "")
	word(&b, "failure", e.Failure, e.Failure != "")
	return strings.Join(strings.Fields(b.String()), " ")
}
