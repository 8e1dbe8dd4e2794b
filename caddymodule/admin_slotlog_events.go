package caddymodule

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2"
)

const (
	// maxEventReaders bounds those who read /slotlog/events at once.
	maxEventReaders = 32

	// settleEvents is how long changes are collected before they are told: a busy
	// server writes a line for each slot and each few tokens.
	settleEvents = 20 * time.Millisecond

	// eventsTick is how often it is looked for what no line tells: sources that came
	// or went, slots that nobody spoke of for too long.
	eventsTick = time.Second

	// eventsPing is how long a stream is silent at most.
	eventsPing = 15 * time.Second

	// eventsPatience is how long a reader may take to take what is written to it.
	eventsPatience = 5 * time.Second
)

// eventReaders counts those who read /slotlog/events, of all admin endpoints.
var eventReaders atomic.Int32

// showEvents tells the slots, and then each server whose slots changed. A reader gets
// the newest state when it is ready for it: one that is slow misses steps in between,
// and one that takes nothing for 5 seconds is dropped. Nothing waits for it.
func showEvents(w http.ResponseWriter, r *http.Request) error {
	if r.Method != http.MethodGet {
		w.Header().Set("Allow", "GET")
		return apiError(http.StatusMethodNotAllowed, "%s is not possible here: use GET", r.Method)
	}
	if currentState() == nil {
		return apiError(http.StatusNotFound, "neither the fleet nor the slotlog app is configured")
	}
	if eventReaders.Add(1) > maxEventReaders {
		eventReaders.Add(-1)
		return apiError(http.StatusServiceUnavailable, "%d readers have the events already, and more are not possible", maxEventReaders)
	}
	defer eventReaders.Add(-1)
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-store")
	e := &eventStream{w: w, control: http.NewResponseController(w), changed: make(chan struct{}, 1)}
	defer e.forget(nil)
	e.run(r.Context().Done())
	return nil
}

// eventStream is one reader of the events.
type eventStream struct {
	w       http.ResponseWriter
	control *http.ResponseController

	changed chan struct{} // by any source
	told    map[portKey][]byte
	sources map[string]sourceNews
	watched map[notifier]func() // cancels
	wrote   time.Time
}

// notifier is what wakes its readers: a log, or the link to a node that reads one.
type notifier interface {
	Notify(c chan struct{}) (cancel func())
}

type portKey struct {
	source string
	port   int
}

// sourceNews is what is told of a source besides its slots.
type sourceNews struct {
	Source   string `json:"source"`
	Degraded bool   `json:"degraded"`
	Reason   string `json:"reason,omitempty"`
}

// portNews is a server whose slots changed.
type portNews struct {
	Source string `json:"source"`
	portSlots
}

// run tells what happens until the reader leaves or is too slow, or nothing is
// configured any more.
func (e *eventStream) run(left <-chan struct{}) {
	tick := time.NewTicker(eventsTick)
	defer tick.Stop()
	for {
		s := currentState()
		if s == nil {
			e.write("end", struct {
				Reason string `json:"reason"`
			}{"neither the fleet nor the slotlog app is configured any more"})
			return
		}
		e.watch(s)
		if !e.tell(slotsOf(s, time.Now())) {
			return
		}
		select {
		case <-left:
			return
		case <-tick.C:
			continue
		case <-e.changed:
		}
		select {
		case <-left:
			return
		case <-time.After(settleEvents):
		}
	}
}

// watch has the sources of the configuration in force wake the stream.
func (e *eventStream) watch(s *state) {
	now := make(map[notifier]bool)
	for _, src := range s.known() {
		if log := src.tail.followed(); log != nil {
			now[log] = true
		}
	}
	for _, n := range s.agentLinks() {
		now[n.link] = true
	}
	if e.watched == nil {
		e.watched = make(map[notifier]func())
	}
	for log := range now {
		if e.watched[log] == nil {
			e.watched[log] = log.Notify(e.changed)
		}
	}
	e.forget(now)
}

// forget leaves all sources that are not to be kept.
func (e *eventStream) forget(keep map[notifier]bool) {
	for log, cancel := range e.watched {
		if !keep[log] {
			cancel()
			delete(e.watched, log)
		}
	}
}

// tell writes what changed since the last call; first, all. false: the stream ends.
func (e *eventStream) tell(all allSlots) bool {
	first := e.told == nil
	if first && !e.write("snapshot", all) {
		return false
	}
	told, sources := make(map[portKey][]byte), make(map[string]sourceNews)
	for _, src := range all.Sources {
		news := sourceNews{src.Source, src.Degraded, src.Reason}
		sources[src.Source] = news
		if before, known := e.sources[src.Source]; !first && (!known || before != news) && !e.write("source", news) {
			return false
		}
		for _, p := range src.Ports {
			body, err := json.Marshal(portNews{src.Source, p})
			if err != nil {
				return false
			}
			k := portKey{src.Source, p.Port}
			told[k] = body
			if !first && !bytes.Equal(e.told[k], body) && !e.send("port", body) {
				return false
			}
		}
	}
	for k := range e.told {
		if _, there := told[k]; !there && !e.write("gone", portGone(k)) {
			return false
		}
	}
	e.told, e.sources = told, sources
	if time.Since(e.wrote) >= eventsPing {
		return e.flush([]byte(": nothing changed\n\n"))
	}
	return true
}

func portGone(k portKey) any {
	return struct {
		Source string `json:"source"`
		Port   int    `json:"port"`
	}{k.source, k.port}
}

func (e *eventStream) write(event string, v any) bool {
	body, err := json.Marshal(v)
	return err == nil && e.send(event, body)
}

func (e *eventStream) send(event string, body []byte) bool {
	return e.flush(fmt.Appendf(nil, "event: %s\ndata: %s\n\n", event, body))
}

func (e *eventStream) flush(b []byte) bool {
	e.wrote = time.Now()
	if e.control.SetWriteDeadline(e.wrote.Add(eventsPatience)) != nil {
		return false
	}
	_, err := e.w.Write(b)
	if err == nil {
		err = e.control.Flush()
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		caddy.Log().Named("admin.api.slotfleet_slotlog").Warn("reader of events was too slow and was dropped")
	}
	return err == nil
}
