package llamacpp

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/slotfleet/slotfleet/fleet"
)

// maxReply bounds the answer to a [fleet.OpAsk]: the embeddings of a batch of long
// texts are tens of megabytes of JSON.
const maxReply = 64 << 20

// Call asks the server something short. [fleet.OpProbe] learns again what it
// offers and tells every Watch; [fleet.OpHealth] only sees whether it answers;
// [fleet.OpAsk] has it answer a request of a client, which may wake it or load a model.
//
// A server that does not answer gives a [*fleet.NodeLost]: refused, timed_out
// (no connection within 2 s, no answer within 5 s to a question of our own), stalled
// or loading. One that answers but cannot be used as it is configured (a wrong key)
// gives a [*fleet.RequestError] whose Err says what an operator has to change.
func (l *Link) Call(ctx context.Context, c fleet.Call) (fleet.Reply, error) {
	switch c.Op {
	case fleet.OpProbe:
		if err := l.probe(ctx); err != nil {
			return fleet.Reply{}, err
		}
		return fleet.Reply{Status: http.StatusOK}, nil
	case fleet.OpHealth:
		a, err := l.ask(ctx, l.client.fresh, healthLimit, http.MethodGet, "/health", nil)
		if err != nil {
			return fleet.Reply{}, err
		}
		if a.Status != http.StatusOK {
			return a, l.objection(a)
		}
		return a, nil
	case fleet.OpAsk:
		return l.answer(ctx, c)
	default:
		return fleet.Reply{}, fmt.Errorf("node %s: operation %d is not known here", l.name, c.Op)
	}
}

// answer makes a client's request that is answered whole. An answer of which only a
// part came is none.
func (l *Link) answer(outer context.Context, c fleet.Call) (fleet.Reply, error) {
	if outer.Err() != nil {
		return fleet.Reply{}, context.Cause(outer)
	}
	if !strings.HasPrefix(c.Path, "/") {
		return fleet.Reply{}, fmt.Errorf("node %s: path %q does not begin with a slash", l.name, c.Path)
	}
	if c.Path == adaptersPath && l.isRouter() {
		return fleet.Reply{}, errRouterAdapters
	}
	if err := l.makeRoom(outer, c.Unload); err != nil {
		return fleet.Reply{}, err
	}
	ctx, cancel := l.bind(outer)
	clock := newWaiting(l.answers, func() { cancel(errStalled) })
	x := &exchange{method: c.Method, path: c.Path, accept: "application/json", contentType: c.ContentType, body: c.Body}
	defer func() {
		l.woke(c.Model)
		cancel(nil)
		clock.close()
		x.bodies.Wait()
	}()
	clock.start(c.Patience.First)
	resp, err := l.client.send(ctx, l.client.keep, x)
	if err != nil {
		clock.stop()
		return fleet.Reply{}, l.fault(outer, ctx, err)
	}
	defer resp.Body.Close()
	b, full, err := readReply(io.LimitReader(resp.Body, maxReply+1), resp.ContentLength, c.Room)
	clock.stop()
	if full != nil {
		return fleet.Reply{}, full
	}
	if err != nil && (ctx.Err() != nil || resp.StatusCode == http.StatusOK) {
		return fleet.Reply{}, l.fault(outer, ctx, err)
	}
	if len(b) > maxReply {
		return fleet.Reply{}, declined("the model server answers more than can be handled", nil)
	}
	r := fleet.Reply{Status: resp.StatusCode, ContentType: resp.Header.Get("Content-Type"), Body: b}
	if r.Status != http.StatusOK {
		return fleet.Reply{}, l.objection(r)
	}
	return r, nil
}

// readReply reads an answer of size bytes (-1: nobody knows) to its end, into memory that
// there is room for. full: there is not.
func readReply(r io.Reader, size int64, room func(int64) error) (b []byte, full, err error) {
	const first = 4 << 10
	if size < 0 || size > maxReply {
		size = first
	}
	for next := size + 1; ; next = 2 * int64(cap(b)) { // one byte more shows the end
		if room != nil {
			if full := room(next); full != nil {
				return nil, full, nil
			}
		}
		b = append(make([]byte, 0, next), b...)
		for len(b) < cap(b) {
			n, err := r.Read(b[len(b):cap(b)])
			b = b[:len(b)+n]
			if err == io.EOF {
				return b, nil, nil
			}
			if err != nil {
				return b, nil, err
			}
		}
	}
}

// answers asks whether the server is there at all.
func (l *Link) answers(ctx context.Context) error {
	_, err := l.ask(ctx, l.client.fresh, healthLimit, http.MethodGet, "/health", nil)
	return err
}
