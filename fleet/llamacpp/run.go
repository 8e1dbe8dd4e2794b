package llamacpp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strings"
	"time"

	"github.com/slotfleet/slotfleet/fleet"
)

const (
	maxAnswer = 1 << 20 // of an answer that is no stream

	// endLimit is how long the end of the body is waited for after [DONE]: the answer
	// is whole and its client waits, but mostly the end is here or on its way, and a
	// server that gets to end it itself sees no broken connection. llama-server keeps
	// no connection after a stream.
	endLimit = 5 * time.Millisecond
)

var (
	doneData = []byte("[DONE]")
	nullData = []byte("null")
	errorKey = []byte(`"error"`)
)

// Run posts the assignment and hands its events to take, as [fleet.Link] says.
// Timings and Progress of an event are valid until take returns, as its Data is. Timings
// are decoded once, at the end, for an assignment that wants them measured.
//
// Statuses and error events become errors by the table of classify.go. An end of
// the connection that is not the end of the body is a [*fleet.NodeLost], even after
// the last event.
//
// When ctx ends, Run waits up to a second for the server to end the generation. One
// that it holds longer counts in [fleet.Instance.Leaving] until it does.
func (l *Link) Run(ctx context.Context, a fleet.Assignment, take func(fleet.Event) error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if !strings.HasPrefix(a.Path, "/") {
		return fmt.Errorf("node %s: path %q does not begin with a slash", l.name, a.Path)
	}
	if err := l.makeRoom(ctx, a.Unload); err != nil {
		return err
	}
	g := &generation{
		link: l, outer: ctx, take: take, patience: a.Patience, model: a.Model, measured: a.Measured,
		x: &exchange{
			method: http.MethodPost, path: a.Path, accept: "text/event-stream",
			contentType: a.ContentType, body: a.Body, wrote: make(chan struct{}),
		},
	}
	g.figures.late = a.Measured != nil
	g.ctx, g.cancel = l.bind(context.WithoutCancel(ctx))
	g.clock = newWaiting(l.answers, func() { g.cancel(errStalled) })
	g.parting = newParting(ctx, g.x, g.cancel)
	defer g.end()
	return g.run()
}

// generation is one Run.
type generation struct {
	link     *Link
	outer    context.Context // the caller's
	ctx      context.Context // the connection's: it outlives the caller's
	cancel   context.CancelCauseFunc
	clock    *waiting
	parting  *parting
	patience fleet.Patience
	take     func(fleet.Event) error
	measured func(fleet.Timings) // told the last timings; nil: events carry them
	model    string
	x        *exchange

	body    io.ReadCloser
	opened  bool
	begun   bool // data came, progress aside
	more    bool // the next event is here, too
	left    bool // the link waits for its end
	figures figures
}

func (g *generation) run() error {
	resp, err := g.send()
	if err != nil {
		return err
	}
	g.body = resp.Body
	if resp.StatusCode != http.StatusOK {
		return g.objection(resp.StatusCode)
	}
	if t, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type")); t != "text/event-stream" {
		if g.outer.Err() != nil { // a server that notices answers nothing, with 200
			return context.Cause(g.outer)
		}
		return declined("the model server answers with something that is not a stream", nil)
	}
	g.opened = true
	g.link.opens(g.model, 1)
	g.link.woke(g.model)
	if err := g.tell(fleet.Event{Kind: fleet.EventOpen}); err != nil {
		return err
	}
	return g.stream()
}

// head is that of an answer, or why there is none.
type head struct {
	resp *http.Response
	err  error
}

// send sends the request and waits for the head of its answer, which may come only
// once the server has a free slot.
func (g *generation) send() (*http.Response, error) {
	g.clock.start(g.limit())
	defer g.clock.stop()
	arrived := make(chan head, 1)
	if !g.link.start(func() {
		resp, err := g.link.client.stream(g.ctx, g.x)
		arrived <- head{resp, err}
	}) {
		return nil, g.lost(context.Cause(g.ctx))
	}
	var a head
	select {
	case a = <-arrived:
	case <-g.outer.Done():
		late := time.NewTimer(leaveLimit)
		defer late.Stop()
		select {
		case a = <-arrived:
		case <-late.C:
			g.left = g.link.leave(g, arrived)
			return nil, context.Cause(g.outer)
		}
	}
	if a.err != nil {
		return nil, g.lost(a.err)
	}
	g.parting.streams()
	return a.resp, nil
}

// end lets go of all that the generation holds. The connection is closed before the
// body: closing a body alone may read on.
func (g *generation) end() {
	if t, ok := g.figures.last(); ok {
		g.measured(t)
	}
	if g.body != nil && g.outer.Err() != nil && g.parting.half() {
		_, _ = io.Copy(io.Discard, g.body) // until the server closes its half
	}
	g.parting.close()
	g.clock.close()
	g.link.woke(g.model)
	if g.left {
		return
	}
	g.cancel(nil)
	if g.body != nil {
		_ = g.body.Close()
	}
	if g.opened {
		g.link.opens(g.model, -1)
	}
	g.x.bodies.Wait()
}

// stream hands on what comes until the end.
func (g *generation) stream() error {
	in := newSSEReader(g)
	for {
		f, err := in.next()
		switch {
		case err == io.EOF:
			return nil
		case errors.Is(err, errEventTooLong):
			return &fleet.RequestError{
				Reason: fleet.ReasonBroken, Message: "the model server sent more at once than can be handled",
				Again: true, Err: err,
			}
		case err != nil:
			return g.lost(err)
		}
		g.more = in.more()
		switch f.kind {
		case framePing:
			err = g.tell(fleet.Event{Kind: fleet.EventAlive})
		case frameError:
			return g.named(classifyEvent(f.data))
		case frameJunk:
			return g.closed(stray(f.data))
		default:
			if bytes.Equal(f.data, doneData) {
				g.finish()
				return nil
			}
			err = g.data(f)
		}
		if err != nil {
			return err
		}
	}
}

// data hands on one payload.
func (g *generation) data(f frame) error {
	data := bytes.TrimSpace(f.data)
	switch {
	case len(data) == 0, bytes.Equal(data, nullData):
		return g.tell(fleet.Event{Kind: fleet.EventAlive})
	case isErrorEvent(data):
		return g.named(classifyEvent(data))
	case f.torn && data[0] == '{' && data[len(data)-1] != '}':
		// A router that loses its child writes a line of text right behind what came.
		return g.closed(errors.New("the stream ended inside an event"))
	}
	e := fleet.Event{Kind: fleet.EventData, Data: f.data}
	g.clock.worked()
	e.Timings, e.Progress = g.figures.read(data)
	if e.Progress == nil {
		g.begun = true
	}
	return g.tell(e)
}

// isErrorEvent reports whether the payload is an object that begins with an error.
// No chunk of an answer does, whatever its text quotes.
func isErrorEvent(data []byte) bool {
	rest, ok := bytes.CutPrefix(data, []byte("{"))
	if !ok {
		return false
	}
	if rest, ok = bytes.CutPrefix(bytes.TrimLeft(rest, " "), errorKey); !ok {
		return false
	}
	rest, ok = bytes.CutPrefix(bytes.TrimLeft(rest, " "), []byte(":"))
	return ok && !bytes.HasPrefix(bytes.TrimLeft(rest, " "), nullData)
}

// tell hands an event to the job, unless the caller's context ended meanwhile.
func (g *generation) tell(e fleet.Event) error {
	if g.outer.Err() != nil {
		return context.Cause(g.outer)
	}
	if e.Kind != fleet.EventData {
		g.clock.rested()
	}
	e.More = g.more
	return g.take(e)
}

// Read reads the stream with the clock running.
func (g *generation) Read(b []byte) (int, error) {
	g.clock.start(g.limit())
	n, err := g.body.Read(b)
	g.clock.stop()
	return n, err
}

func (g *generation) limit() time.Duration {
	if g.begun {
		return g.patience.Stall
	}
	return g.patience.First
}

// objection reads and judges an answer that is not 200. What of it came counts: a
// server that answers before it read the request may break the connection after.
func (g *generation) objection(status int) error {
	body, err := io.ReadAll(io.LimitReader(g, maxAnswer))
	if err != nil && g.ctx.Err() != nil {
		return g.lost(err)
	}
	return g.link.objection(fleet.Reply{Status: status, Body: body})
}

// finish takes the end of the body if it comes within endLimit.
func (g *generation) finish() {
	t := time.AfterFunc(endLimit, func() { g.cancel(nil) })
	defer t.Stop()
	_, _ = io.Copy(io.Discard, io.LimitReader(g.body, maxAnswer))
}

func (g *generation) lost(err error) error { return g.link.fault(g.outer, g.ctx, err) }

func (g *generation) closed(err error) error {
	return &fleet.NodeLost{Node: g.link.name, Cause: fleet.CauseClosed, Err: err}
}

func (g *generation) named(err error) error {
	if lost, ok := errors.AsType[*fleet.NodeLost](err); ok {
		lost.Node = g.link.name
	}
	return err
}
