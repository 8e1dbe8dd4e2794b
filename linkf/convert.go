package linkf

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/slotfleet/slotfleet/fleet"
)

// featureNames are the features' names on the wire. One that a side does not know is
// one that it does not have.
var featureNames = []struct {
	bit  fleet.Features
	name string
}{
	{fleet.ContinueContent, "continue_content"},
	{fleet.ContinueReasoning, "continue_reasoning"},
	{fleet.ContinueGrammar, "continue_grammar"},
	{fleet.GenerationPrompt, "generation_prompt"},
	{fleet.ContinueResponses, "continue_responses"},
	{fleet.ContinueMessages, "continue_messages"},
}

// statusOf is what a node says of itself; wall is the time of its clock.
func statusOf(s fleet.NodeState, wall time.Time) status {
	m := status{Places: uint32(max(0, s.Places)), Loads: s.Loads}
	if s.Down != nil {
		m.Down = outcomeOf(s.Down)
	}
	for _, i := range s.Instances {
		w := instance{
			Model: utf8Text(i.Model), State: i.State.String(), Lanes: uint32(max(0, i.Lanes)),
			Context: int64(i.Context), KVUnified: i.KVUnified, Fingerprint: utf8Text(i.Fingerprint),
			Leaving: uint32(max(0, i.Leaving)), Routed: i.Routed, Port: uint32(max(0, i.Port)),
			Active: uint32(max(0, i.Load.Active)), Queued: uint32(max(0, i.Load.Queued)), Ours: uint32(max(0, i.Load.Ours)),
			KVUsed: int64(i.Load.KVUsed), KVTotal: int64(i.Load.KVTotal),
			Prefill: i.Rates.Prefill, Decode: i.Rates.Decode,
		}
		for _, a := range i.Aliases {
			w.Aliases = append(w.Aliases, utf8Text(a))
		}
		for _, f := range featureNames {
			if i.Features.Has(f.bit) {
				w.Features = append(w.Features, f.name)
			}
		}
		if !i.Load.At.IsZero() {
			age := millis(wall.Sub(i.Load.At))
			w.Age = &age
		}
		m.Instances = append(m.Instances, w)
	}
	return m
}

// state is what the head's manager is told.
func (m *status) state(node string, wall time.Time) fleet.NodeState {
	s := fleet.NodeState{Places: int(m.Places), Loads: m.Loads, Leaving: m.Leaving}
	if m.Down != nil {
		s.Down = m.Down.err(node)
	}
	for _, w := range m.Instances {
		i := fleet.Instance{
			Node: node, Model: w.Model, Aliases: w.Aliases, State: stateNamed(w.State), Lanes: int(w.Lanes),
			Context: fleet.Tokens(w.Context), KVUnified: w.KVUnified, Fingerprint: w.Fingerprint,
			Leaving: int(w.Leaving), Routed: w.Routed, Port: int(w.Port),
			Load: fleet.Load{
				Active: int(w.Active), Queued: int(w.Queued), Ours: int(w.Ours),
				KVUsed: fleet.Tokens(w.KVUsed), KVTotal: fleet.Tokens(w.KVTotal),
			},
			Rates: fleet.Rates{Prefill: w.Prefill, Decode: w.Decode},
		}
		for _, f := range featureNames {
			for _, name := range w.Features {
				if name == f.name {
					i.Features |= f.bit
				}
			}
		}
		if w.Age != nil {
			i.Load.At = wall.Add(-time.Duration(*w.Age) * time.Millisecond)
		}
		s.Instances = append(s.Instances, i)
	}
	return s
}

// stateNamed is failed for a state that this side does not know: not to be used.
func stateNamed(name string) fleet.State {
	for s := fleet.StateUnloaded; s <= fleet.StateFailed; s++ {
		if s.String() == name {
			return s
		}
	}
	return fleet.StateFailed
}

// eventOf is an event on the wire.
func eventOf(e fleet.Event) event {
	w := event{Kind: uint8(e.Kind), Data: e.Data}
	if p := e.Progress; p != nil {
		w.Progress = &progress{int64(p.Total), int64(p.Cached), int64(p.Processed)}
	}
	if t := e.Timings; t != nil {
		w.Timings = &timings{int64(t.Cached), int64(t.Prompt), int64(t.Predicted), t.PromptPerSecond, t.PredictedPerSecond}
	}
	return w
}

func (e *event) fleet() fleet.Event {
	f := fleet.Event{Kind: fleet.EventKind(e.Kind), Data: e.Data}
	if p := e.Progress; p != nil {
		f.Progress = &fleet.Progress{Total: fleet.Tokens(p.Total), Cached: fleet.Tokens(p.Cached), Processed: fleet.Tokens(p.Processed)}
	}
	if t := e.Timings; t != nil {
		f.Timings = &fleet.Timings{
			Cached: fleet.Tokens(t.Cached), Prompt: fleet.Tokens(t.Prompt), Predicted: fleet.Tokens(t.Predicted),
			PromptPerSecond: t.PromptPerSecond, PredictedPerSecond: t.PredictedPerSecond,
		}
	}
	return f
}

// cost is what the event counts against credit and retry buffer.
func (e *event) cost() uint64 {
	n := eventCost + len(e.Data)
	if e.Outcome != nil && e.Outcome.Answer != nil {
		n += len(e.Outcome.Answer.Body)
	}
	return uint64(n)
}

// maxText is the most of one text in a message: names, paths, errors.
const maxText = 8 << 10

// outcomeOf is an error on the wire; nil is a whole answer.
func outcomeOf(err error) *outcome {
	var lost *fleet.NodeLost
	var refused *fleet.RequestError
	switch {
	case err == nil:
		return &outcome{Kind: outcomeDone}
	case errors.As(err, &lost):
		o := &outcome{Kind: outcomeLost, Why: name(string(lost.Cause))}
		if lost.Err != nil {
			o.Detail = text(lost.Err.Error())
		}
		return o
	case errors.As(err, &refused):
		o := &outcome{
			Kind: outcomeRefused, Why: name(string(refused.Reason)), Message: text(refused.Message),
			Len: int64(refused.Len), Max: int64(refused.Max), RetryAfter: millis(refused.RetryAfter), Again: refused.Again,
		}
		if refused.Err != nil {
			o.Detail = text(refused.Err.Error())
		}
		if r := refused.Reply; r != nil && len(r.Body) <= maxInline {
			o.Answer = &reply{Status: r.Status, ContentType: text(r.ContentType), Body: r.Body}
		}
		return o
	}
	return &outcome{Kind: outcomeLost, Why: string(fleet.CauseUnusable), Detail: text(err.Error())}
}

// text makes any text fit to be sent: bounded, and UTF-8.
func text(s string) string { return clip(utf8Text(s), maxText) }

func utf8Text(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }

// err is what the outcome means at the head.
func (o *outcome) err(node string) error {
	var detail error
	if o.Detail != "" {
		detail = errors.New(o.Detail)
	}
	switch o.Kind {
	case outcomeDone:
		return nil
	case outcomeRefused:
		e := &fleet.RequestError{
			Reason: fleet.Reason(o.Why), Message: o.Message, Len: fleet.Tokens(o.Len), Max: fleet.Tokens(o.Max),
			RetryAfter: time.Duration(o.RetryAfter) * time.Millisecond, Again: o.Again, Err: detail,
		}
		if o.Answer != nil {
			e.Reply = &fleet.Reply{Status: o.Answer.Status, ContentType: o.Answer.ContentType, Body: o.Answer.Body}
		}
		return e
	case outcomeLost:
		return &fleet.NodeLost{Node: node, Cause: fleet.Cause(o.Why), Err: detail}
	}
	return lost(node, fleet.CauseUnusable, fmt.Errorf("an outcome of kind %d", o.Kind))
}

func lost(node string, cause fleet.Cause, err error) error {
	return &fleet.NodeLost{Node: node, Cause: cause, Err: err}
}

// millis is a time on the wire: whole milliseconds, rounded up, so that a limit never
// becomes none.
func millis(d time.Duration) uint32 {
	ms := (d + time.Millisecond - 1) / time.Millisecond
	return uint32(min(max(ms, 0), 1<<32-1))
}

func duration(ms uint32) time.Duration { return time.Duration(ms) * time.Millisecond }
