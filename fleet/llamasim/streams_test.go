package llamasim

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
)

// askKept streams a request that the server keeps.
func askKept(ctx context.Context, t *testing.T, s *Server, id string, body dict) *http.Response {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.URL()+chatPath, strings.NewReader(js(t, body)))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-Conversation-Id", id)
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = resp.Body.Close() })
	return resp
}

func replayed(t *testing.T, s *Server, id string, from int) string {
	t.Helper()
	resp := get1(t, fmt.Sprintf("%s/v1/stream?conv_id=%s&from=%d", s.URL(), id, from))
	b, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("from %d: got %d %s, %v", from, resp.StatusCode, b, err)
	}
	return string(b)
}

func stop(t *testing.T, s *Server, id string) int {
	t.Helper()
	req, _ := http.NewRequestWithContext(t.Context(), http.MethodDelete, s.URL()+"/v1/stream?conv_id="+id, nil)
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	return resp.StatusCode
}

func TestKeptStreamReplaysFromEveryByte(t *testing.T) {
	s := start(t, Options{})
	b, err := io.ReadAll(askKept(t.Context(), t, s, "c-77%2F1", dict{"messages": user("hi"), "max_tokens": 5, "stream": true}).Body)
	if err != nil {
		t.Fatal(err)
	}
	whole := string(b)
	for from := 0; from <= len(whole); from += 37 {
		if got := replayed(t, s, "c-77%252F1", from); got != whole[from:] {
			t.Fatalf("from %d: got %q, want %q", from, got, whole[from:])
		}
	}
	var list []dict
	decode(t, post(t.Context(), t, s.URL()+"/v1/streams/lookup", `{"conversation_ids":["c-77%2F1","zz"]}`), &list)
	if len(list) != 1 || list[0]["is_done"] != true || list[0]["total_bytes"] != float64(len(whole)) {
		t.Errorf("lookup: got %v, want one of %d bytes", list, len(whole))
	}
	for _, c := range []struct {
		query  string
		status int
	}{{"conv_id=zz", 404}, {"", 400}, {"conv_id=c-77%252F1&from=x", 400}} {
		if got := get1(t, s.URL()+"/v1/stream?"+c.query).StatusCode; got != c.status {
			t.Errorf("%q: got %d, want %d", c.query, got, c.status)
		}
	}
}

// TestKeptStreamOutlivesItsClient leaves in the middle and comes back for the rest.
func TestKeptStreamOutlivesItsClient(t *testing.T) {
	for name, s := range map[string]*Server{
		"single": start(t, Options{Decode: 400}),
		"router": start(t, Options{Decode: 400, Models: []Model{{Name: "m"}}}),
	} {
		t.Run(name, func(t *testing.T) {
			body := dict{"model": "m", "messages": user(question), "max_tokens": 60, "stream": true}
			want := ask(t, s, chatPath, body)
			ctx, leave := context.WithCancel(t.Context())
			read(t, askKept(ctx, t, s, "c", body), func(event) bool { return false })
			leave()
			got := ""
			for e := range strings.SplitSeq(replayed(t, s, "c", 0), "\n\n") {
				_, after, ok := strings.Cut(e, `"delta":{"content":"`)
				if ok {
					got += strings.SplitN(after, `"}`, 2)[0]
				}
			}
			if plain := strings.Trim(js(t, want.content), `"`); len(got) < len(want.content)/2 || !strings.HasSuffix(replayed(t, s, "c", 0), "[DONE]\n\n") {
				t.Errorf("got %q, want about %q", got, plain)
			}
			if st := s.Stats(); st.Cancelled != 0 {
				t.Errorf("%d generations were cancelled", st.Cancelled)
			}
		})
	}
}

// TestKeptStreamOutlivesItsConnection: the faults of connections do not end it.
func TestKeptStreamOutlivesItsConnection(t *testing.T) {
	s := start(t, Options{})
	body := dict{"messages": user(question), "max_tokens": 40, "stream": true}
	whole, _ := io.ReadAll(askKept(t.Context(), t, s, "a", body).Body)
	s.SetFault(Fault{Kind: FaultReset, Token: 10, Times: 1})
	part, err := io.ReadAll(askKept(t.Context(), t, s, "b", body).Body)
	if err == nil || len(part) == 0 {
		t.Fatalf("got %d bytes, %v, want a broken stream", len(part), err)
	}
	rest := replayed(t, s, "b", len(part))
	if got, want := len(part)+len(rest), len(whole); got < want-40 || got > want+40 || !strings.HasSuffix(rest, "[DONE]\n\n") {
		t.Errorf("%d and %d bytes, want about %d in all", len(part), len(rest), want)
	}
}

func TestKeptStreamEndsWhenItIsDeleted(t *testing.T) {
	s := start(t, Options{Decode: 200})
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	body := dict{"messages": user("hi"), "stream": true, "ignore_eos": true}
	read(t, askKept(ctx, t, s, "c", body), func(event) bool { return false })
	leave()
	if got := stop(t, s, "c"); got != http.StatusNoContent {
		t.Errorf("got %d, want 204", got)
	}
	eventually(t, "the slot is free", func() bool { return s.Stats().Active == 0 })
	if st := s.Stats(); st.Cancelled != 1 {
		t.Errorf("cancelled: got %d, want 1", st.Cancelled)
	}
	if got := stop(t, s, "nobody"); got != http.StatusNoContent {
		t.Errorf("one there is not: got %d, want 204", got)
	}
}

func TestSecondStreamOfAConversationEndsTheFirst(t *testing.T) {
	s := start(t, Options{Decode: 200})
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	endless := dict{"messages": user("hi"), "stream": true, "ignore_eos": true}
	read(t, askKept(ctx, t, s, "c", endless), func(event) bool { return false })
	if st := read(t, askKept(t.Context(), t, s, "c", dict{"messages": user("yo"), "stream": true, "max_tokens": 3}), nil); !st.done {
		t.Error("the second did not come to its end")
	}
	eventually(t, "the first has ended", func() bool { return s.Stats().Active == 0 })
}
