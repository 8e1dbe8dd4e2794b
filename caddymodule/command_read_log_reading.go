package caddymodule

import (
	"bytes"
	"slices"
	"strings"
	"time"

	"github.com/slotfleet/slotfleet/slotlog"
)

// logReading is a log as far as it was read. Where only one port is wanted, the
// lines without a port are read both ways: as the log itself has it, for a router
// among whose servers the port is, and as that port's.
type logReading struct {
	port    int
	asIs    logView
	asPort  *logView // nil: all ports are wanted
	part    []byte   // of the line being read
	shapes  []string
	before  slotlog.Stats
	changed slotChanges
}

type logView struct {
	reader  *slotlog.Reader
	tracker *slotlog.Tracker
}

const (
	maxShapes = 5
	maxShape  = 120
)

func newLogReading(port int) *logReading {
	r := &logReading{port: port, asIs: newLogView(0)}
	if port > 0 {
		v := newLogView(port)
		r.asPort = &v
	}
	return r
}

func newLogView(port int) logView {
	return logView{
		reader:  slotlog.NewReader(slotlog.SourceOptions{Port: port}),
		tracker: slotlog.NewTracker(),
	}
}

// feed takes the next bytes of the log, line by line, to be able to show those
// that the reader does not know.
func (r *logReading) feed(b []byte, at time.Time) {
	for len(b) > 0 {
		n := bytes.IndexByte(b, '\n') + 1
		line := b[:n]
		if n == 0 {
			line = b
		}
		b = b[len(line):]
		r.asIs.feed(line, at)
		if r.asPort != nil {
			r.asPort.feed(line, at)
		}
		if room := maxShape - len(r.part); room > 0 {
			r.part = append(r.part, line[:min(room, len(line))]...)
		}
		if n > 0 {
			r.lineEnded()
		}
	}
}

func (r *logReading) lineEnded() {
	now := r.asIs.reader.Stats()
	if now.Unknown > r.before.Unknown && now.Framed > r.before.Framed && len(r.shapes) < maxShapes {
		if s := shapeOf(r.part); !slices.Contains(r.shapes, s) {
			r.shapes = append(r.shapes, s)
		}
	}
	r.before, r.part = now, r.part[:0]
}

// shapeOf is a line without its numbers, fit to be shown.
func shapeOf(line []byte) string {
	var b strings.Builder
	digits := false
	for _, c := range strings.TrimSpace(string(line)) {
		digit := c >= '0' && c <= '9'
		if !digit {
			b.WriteRune(c)
		} else if !digits {
			b.WriteByte('#')
		}
		digits = digit
	}
	return printable(b.String())
}

func (v *logView) feed(b []byte, at time.Time) { v.reader.FeedTo(v.tracker, b, at) }

// view is the reading that counts.
func (r *logReading) view() *logView {
	if r.asPort != nil && r.fixedPort() != 0 {
		return r.asPort
	}
	return &r.asIs
}

// fixedPort is the port of the lines that print none; 0: as the log itself has it.
func (r *logReading) fixedPort() int {
	if slices.Contains(r.asIs.tracker.Ports(), r.port) {
		return 0
	}
	return r.port
}

// report is what the log says in all.
func (r *logReading) report(now time.Time) logReport {
	v := r.view()
	st := v.reader.Stats()
	ports := onlyPort(v.tracker.Report(now), r.port)
	r.changed.of(ports)
	return logReport{
		At: now, Ports: ports, Tokens: v.tracker.TakeGeneratedTokens(), Requests: requestsOf(v.tracker.TakeRecords(), r.port),
		logCounts: &logCounts{
			Lines: st.Lines, Understood: st.Lines - st.Unknown, Unknown: st.Unknown,
			Degraded: v.reader.Degraded(), UnknownShapes: append([]string{}, r.shapes...),
		},
	}
}

// changes is what became different since the last call.
func (r *logReading) changes(now time.Time) logReport {
	v := r.view()
	return logReport{
		At: now, Change: true, Ports: r.changed.of(onlyPort(v.tracker.Report(now), r.port)),
		Requests: requestsOf(v.tracker.TakeRecords(), r.port),
	}
}

// requestsOf are those of one port; 0: all.
func requestsOf(list []slotlog.RequestRecord, port int) []slotlog.RequestRecord {
	return slices.DeleteFunc(list, func(q slotlog.RequestRecord) bool { return port != 0 && q.Port != port })
}

func onlyPort(list []slotlog.PortState, port int) []slotlog.PortState {
	if port == 0 {
		return list
	}
	for _, p := range list {
		if p.Port == port {
			return []slotlog.PortState{p}
		}
	}
	return []slotlog.PortState{}
}
