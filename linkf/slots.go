package linkf

import (
	"bytes"
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/fxamacker/cbor/v2"
)

// Log is what the log of a node's model servers says of their slots.
type Log struct {
	// Servers are those that write to the log, by port.
	Servers []Server

	// At is when the log was last read to its end. Zero: never.
	At time.Time

	// Unsure is why the slots may be missing or old. Empty: they are not.
	Unsure string

	// Lost is since when the node has had no connection, or not said this again: these
	// are its last words. Zero: they are not. Only a head sets it.
	Lost time.Time
}

// Server is one model server, in the words of the slotlog package. What is not known is
// nil or zero.
type Server struct {
	Port     uint32   `cbor:"1,keyasint"`
	Model    string   `cbor:"2,keyasint,omitempty"`
	State    string   `cbor:"3,keyasint,omitempty"`
	Progress *float64 `cbor:"4,keyasint,omitempty"` // of loading the model, 0 to 1
	Lanes    uint32   `cbor:"5,keyasint,omitempty"`
	Context  int64    `cbor:"6,keyasint,omitempty"` // of each lane, in tokens
	Unified  *bool    `cbor:"7,keyasint,omitempty"` // whether the lanes share it
	Restarts uint32   `cbor:"8,keyasint,omitempty"`
	Failure  string   `cbor:"9,keyasint,omitempty"`
	Slots    []Slot   `cbor:"10,keyasint,omitempty"`
}

// Slot is one slot of a server, by its number. Tokens and rates are those of its task.
type Slot struct {
	Slot      uint32   `cbor:"1,keyasint,omitempty"`
	State     string   `cbor:"2,keyasint"`
	Phase     string   `cbor:"3,keyasint,omitempty"` // finer than State
	Task      *int64   `cbor:"4,keyasint,omitempty"`
	Held      *int64   `cbor:"5,keyasint,omitempty"` // tokens that it holds, as its state has it
	Decoded   *int64   `cbor:"6,keyasint,omitempty"`
	Rate      *float64 `cbor:"7,keyasint,omitempty"` // tokens generated in a second
	RateNow   *float64 `cbor:"8,keyasint,omitempty"` // of the last seconds
	Prompt    *int64   `cbor:"9,keyasint,omitempty"`
	Processed *int64   `cbor:"10,keyasint,omitempty"` // of the prompt
	Cached    *int64   `cbor:"11,keyasint,omitempty"` // of the prompt
	Progress  *float64 `cbor:"12,keyasint,omitempty"` // of the prompt, 0 to 1
	Used      *int64   `cbor:"13,keyasint,omitempty"` // tokens in its context
	Size      *int64   `cbor:"14,keyasint,omitempty"` // of its context
	Shifts    uint32   `cbor:"15,keyasint,omitempty"` // of its context
	Truncated bool     `cbor:"16,keyasint,omitempty"` // the prompt was
	Cancelled bool     `cbor:"17,keyasint,omitempty"` // and not let go yet
	Failure   string   `cbor:"18,keyasint,omitempty"`
}

// The bounds of a log that is told.
const (
	maxServers = 256
	maxSlots   = 4096 // of all servers
	maxLanes   = 1024 // slots of one server
	maxName    = 256  // bytes of a model's name or another word
)

// slots is the message: all ports, and the servers that changed.
type slots struct {
	Age     *uint32           `cbor:"1,keyasint,omitempty"` // of the last look at the log
	Unsure  string            `cbor:"2,keyasint,omitempty"`
	Ports   []uint32          `cbor:"3,keyasint,omitempty"`
	Servers []cbor.RawMessage `cbor:"4,keyasint,omitempty"` // a Server each
}

// saying is a node's log as it is told to its heads: each server is encoded once for
// all of them, and goes to a head only if it changed since that was told.
type saying struct {
	servers []said // by port
	age     *uint32
	at      time.Duration // when age was right
	unsure  string
	changes uint64 // counts servers that changed
}

type said struct {
	port   uint32
	raw    cbor.RawMessage
	change uint64
}

// show says what the node's log shows now; wall is the time of its clock. It goes to the
// heads when they were not told for statusGap.
func (a *agentMachine) show(now time.Duration, l Log, wall time.Time) {
	a.advance(now)
	if a.log == nil {
		a.log = new(saying)
	}
	a.log.update(l)
	a.log.at, a.log.age = a.now, nil
	if !l.At.IsZero() {
		age := millis(wall.Sub(l.At))
		a.log.age = &age
	}
	for _, c := range a.conns {
		c.slotsDue = true
	}
}

// update notes which servers changed. What is beyond the bounds is left out.
func (s *saying) update(l Log) {
	s.unsure = text(l.Unsure)
	before, room := s.servers, maxSlots
	s.servers = nil
	for _, x := range l.Servers[:min(len(l.Servers), maxServers)] {
		x.Slots = slices.Clone(x.Slots[:min(len(x.Slots), maxLanes, room)])
		room -= len(x.Slots)
		x.words(name)
		raw, err := encMode.Marshal(x)
		if err != nil {
			continue // nothing in it can fail
		}
		i := slices.IndexFunc(before, func(old said) bool { return old.port == x.Port })
		if i >= 0 && bytes.Equal(before[i].raw, raw) {
			s.servers = append(s.servers, before[i])
			continue
		}
		s.changes++
		s.servers = append(s.servers, said{x.Port, raw, s.changes})
	}
}

// since is what a head is told that knows of the first changes: as much as goes into one
// frame, and up to which change it knows then.
func (s *saying) since(told uint64, now time.Duration) (m slots, upTo uint64, whole bool) {
	m.Unsure = s.unsure
	if s.age != nil {
		age := *s.age + millis(now-s.at)
		m.Age = &age
	}
	var changed []said
	for _, x := range s.servers {
		m.Ports = append(m.Ports, x.port)
		if x.change > told {
			changed = append(changed, x)
		}
	}
	slices.SortFunc(changed, func(a, b said) int { return cmp.Compare(a.change, b.change) })
	size := 0
	for _, x := range changed {
		if size > 0 && size+len(x.raw) > eventsFrame {
			return m, told, false
		}
		size += len(x.raw)
		m.Servers = append(m.Servers, x.raw)
		told = x.change
	}
	return m, told, true
}

// pullSlots writes what the log shows, if that is due.
func (a *agentMachine) pullSlots(b []byte, c *agentConn) []byte {
	if !c.slotsDue || !c.reconciled || a.log == nil || a.now-c.slotsAt < statusGap {
		return b
	}
	m, upTo, whole := a.log.since(c.slotsTold, a.now)
	c.slotsTold, c.slotsAt, c.slotsDue = upTo, a.now, !whole
	return c.wire.put(b, typeSlots, m, a.now)
}

// shown is what a head knows of a node's log.
type shown struct {
	servers map[uint32]Server
	at      time.Duration // of the last look at it
	looked  bool
	unsure  string
	current bool // the node said it on the connection that stands
}

// shows takes what the node's log shows.
func (h *headMachine) shows(m slots) error {
	if len(m.Ports) > maxServers {
		return fmt.Errorf("slots of %d servers: at most %d are taken", len(m.Ports), maxServers)
	}
	if h.log == nil {
		h.log = &shown{servers: make(map[uint32]Server)}
	}
	l := h.log
	l.unsure, l.looked, l.current = clip(m.Unsure, maxText), m.Age != nil, true
	if l.looked {
		l.at = h.now - duration(*m.Age)
	}
	total := 0
	for port, x := range l.servers {
		if !slices.Contains(m.Ports, port) {
			delete(l.servers, port)
			continue
		}
		total += len(x.Slots)
	}
	for _, raw := range m.Servers {
		var x Server
		if err := decMode.Unmarshal(raw, &x); err != nil {
			return fmt.Errorf("slots: %w", err)
		}
		if !slices.Contains(m.Ports, x.Port) {
			continue
		}
		if total += len(x.Slots) - len(l.servers[x.Port].Slots); total > maxSlots || len(x.Slots) > maxLanes {
			return fmt.Errorf("%d slots of a server, %d in all: at most %d and %d are taken", len(x.Slots), total, maxLanes, maxSlots)
		}
		x.tidy()
		l.servers[x.Port] = x
	}
	h.act(headAction{kind: headLog})
	return nil
}

// toldAll forgets the log of a node that reads none any more: it would have shown it
// before its first status.
func (h *headMachine) toldAll() {
	if h.log != nil && !h.log.current {
		h.log = nil
		h.act(headAction{kind: headLog})
	}
}

// name makes any word fit to be sent: bounded, and UTF-8. A file of a model may be called
// anything, and a head ends the link of a node that sends it no UTF-8.
func name(s string) string { return clip(utf8Text(s), maxName) }

// words makes something of each of the server's words.
func (x *Server) words(of func(string) string) {
	x.Model, x.State, x.Failure = of(x.Model), of(x.State), of(x.Failure)
	for i := range x.Slots {
		s := &x.Slots[i]
		s.State, s.Phase, s.Failure = of(s.State), of(s.Phase), of(s.Failure)
	}
}

// tidy takes away figures that cannot be.
func (x *Server) tidy() {
	x.words(name)
	x.Progress, x.Context = share(x.Progress), max(0, x.Context)
	for i := range x.Slots {
		s := &x.Slots[i]
		s.Progress, s.Rate, s.RateNow = share(s.Progress), figure(s.Rate), figure(s.RateNow)
		for _, n := range []**int64{&s.Task, &s.Held, &s.Decoded, &s.Prompt, &s.Processed, &s.Cached, &s.Used, &s.Size} {
			if *n != nil && **n < 0 {
				*n = nil
			}
		}
	}
	slices.SortStableFunc(x.Slots, func(a, b Slot) int { return cmp.Compare(a.Slot, b.Slot) })
	x.Slots = slices.CompactFunc(x.Slots, func(a, b Slot) bool { return a.Slot == b.Slot })
}

// figure is one that can be: finite, and not negative.
func figure(f *float64) *float64 {
	if f == nil || !(*f >= 0) || math.IsInf(*f, 0) {
		return nil
	}
	return f
}

func share(f *float64) *float64 {
	if f = figure(f); f == nil || *f > 1 {
		return nil
	}
	return f
}

// Log returns what the node's log shows, as it said last; false: it reads none, or did
// not say so yet.
func (l *Link) Log() (Log, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	x := l.m.log
	if x == nil {
		return Log{}, false
	}
	out := Log{Unsure: x.unsure, Servers: make([]Server, 0, len(x.servers))}
	if x.looked {
		out.At = time.Now().Add(l.m.told(x.at) - clockNow())
	}
	if l.conn == nil || !x.current {
		out.Lost = l.lostAt
	}
	for _, s := range x.servers {
		out.Servers = append(out.Servers, s)
	}
	slices.SortFunc(out.Servers, func(a, b Server) int { return cmp.Compare(a.Port, b.Port) })
	return out, true
}

// Notify puts a value into c, which should hold one, at once and whenever Log has
// something new to say. Nobody waits for it to be read.
func (l *Link) Notify(c chan struct{}) (cancel func()) {
	wakeUp(c)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.readers[c]++
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.readers[c]--; l.readers[c] == 0 {
			delete(l.readers, c)
		}
	}
}

// Show tells the heads what the log of the node's model servers shows.
func (n *Node) Show(l Log) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.m.show(clockNow(), l, time.Now())
	n.stir()
}
