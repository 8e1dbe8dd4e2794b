package linkf

import (
	"bytes"
	"encoding/hex"
	"flag"
	"fmt"
	"os"
	"reflect"
	"runtime"
	"strings"
	"testing"

	"github.com/fxamacker/cbor/v2"
	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write testdata/vectors.txt anew")

// vector is a message whose bytes docs/linkf.md shows.
type vector struct {
	typ Type
	msg any
}

func vectors() []vector {
	k := key{Session: 7, Epoch: 300}
	age := uint32(40)
	sixteen := func(from byte) []byte {
		b := make([]byte, 16)
		for i := range b {
			b[i] = from + byte(i)
		}
		return b
	}
	server := must(encMode.Marshal(Server{
		Port: 8081, Model: "qwen", State: "ready", Lanes: 2, Context: 8192, Unified: new(true),
		Slots: []Slot{
			{State: "processing", Phase: "prefill", Task: new(int64(12)), Held: new(int64(1630)), Decoded: new(int64(0)), Prompt: new(int64(1700)), Cached: new(int64(70)), Progress: new(0.5)},
			{Slot: 1, State: "idle", Phase: "idle", Used: new(int64(900))},
		},
	}))
	return []vector{
		{typeHello, hello{From: 1, To: 1, Instance: sixteen(0), Identity: "edge", Limits: limits{Transfer: maxTransfer}}},
		{typeHelloAck, helloAck{Version: 1, Instance: sixteen(16), Identity: "box-a", Limits: limits{Transfer: maxTransfer, Sessions: maxSessions}}},
		{typeReconcile, reconcile{Sessions: []wanted{{k, 1, 12}, {key: key{8, 301}}}}},
		{typeReconcileAck, reconcileAck{Sessions: []holding{{k, true, 3}, {key: key{8, 301}}}}},
		{typeAssign, assign{k, 1, 30000, 10000, "qwen", "gemma"}},
		{typeAppend, appendContent{k, 2, "/v1/completions", "application/json", []byte(`{"prompt":"a"}`), 0}},
		{typeGenerate, generate{k, 3, 1, 0, 15000, creditRoom}},
		{typeCancel, command{k, 4}},
		{typePark, command{k, 4}},
		{typeRevoke, command{k, 5}},
		{typeRenew, k},
		{typeGrant, grant{k, 30000, 10000}},
		{typeGone, gone{k, goneDeclined, "all lanes are taken"}},
		{typeEvents, events{k, 1, 0, []event{
			{Kind: eventOpen},
			{Kind: eventAlive, Progress: &progress{100, 20, 60}},
			{Kind: eventData, Data: []byte(`{"a`), More: true},
			{Kind: eventData, Data: []byte(`":1}`), Timings: &timings{20, 80, 2, 500, 31.5}},
			{Kind: eventEnd, Outcome: &outcome{Kind: outcomeLost, Why: "reset", Detail: "connection reset"}},
		}}},
		{typeAck, ack{k, 1, 5}},
		{typeCredit, credit{k, 1, 2 * creditRoom}},
		{typeStatus, status{Instances: []instance{{
			Model: "qwen", Aliases: []string{"q"}, State: "ready", Lanes: 4, Context: 8192, KVUnified: true, Fingerprint: "f1",
			Features: []string{"continue_content"}, Leaving: 1, Routed: true, Port: 8081, Active: 2, Queued: 1, Ours: 1,
			KVUsed: 900, KVTotal: 8192, Age: &age, Prefill: 500, Decode: 31.5,
		}}, Places: 2, Loads: true, Down: &outcome{Kind: outcomeLost, Why: "refused"}, Watch: 5000}},
		{typeCall, call{ID: 9, Op: 3, Method: "POST", Path: "/tokenize", ContentType: "application/json", Model: "qwen", Stall: 15000, Body: []byte(`{}`)}},
		{typeCallCancel, callID{9}},
		{typeReply, reply{ID: 9, Status: 200, ContentType: "application/json", Body: []byte(`{}`)}},
		{typeSlots, slots{Age: &age, Unsure: "most lines are not understood", Ports: []uint32{8081, 8082}, Servers: []cbor.RawMessage{server}}},
		{typeTransferBegin, transfer{ID: 1, Size: 3}},
		{typeTransferChunk, transfer{ID: 1, Data: []byte("abc")}},
		{typeTransferEnd, transfer{ID: 1}},
		{typeTransferAbort, transfer{ID: 1, Reason: "not needed any more"}},
		{typeTransferAck, transfer{ID: 1, Offset: 3}},
		{typeClose, closing{Reason: "nothing came for 3s"}},
		{typeKeepalive, empty{}},
		{typeClose, closing{Reason: "its name is in use", Refusal: uint8(RefusedName)}},
		{typeNotice, notice{"another node has the name box-a"}},
	}
}

// The bytes of every message are fixed, so that another program can speak to this one.
func TestMessagesHaveTheBytesOfTheSpecification(t *testing.T) {
	var out strings.Builder
	seen := make(map[Type]bool)
	for i, v := range vectors() {
		w := &wire{seqOut: uint64(i)}
		fmt.Fprintf(&out, "%s: %s\n", v.typ, hex.EncodeToString(w.put(nil, v.typ, v.msg, 0)))
		seen[v.typ] = true
	}
	for typ, name := range typeNames {
		if !seen[typ] {
			t.Errorf("no vector for %s", name)
		}
	}
	if *update {
		if err := os.WriteFile("testdata/vectors.txt", []byte(out.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile("testdata/vectors.txt")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), out.String()); diff != "" {
		t.Errorf("bytes of messages (-want +got):\n%s", diff)
	}
}

func TestSpecificationShowsTheBytesOfEveryMessage(t *testing.T) {
	doc, err := os.ReadFile("../docs/linkf.md")
	if err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile("testdata/vectors.txt")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.SplitSeq(strings.TrimSpace(string(want)), "\n") {
		if !strings.Contains(string(doc), line) {
			t.Errorf("docs/linkf.md does not hold the line %q", line)
		}
	}
	for typ, name := range typeNames {
		if !strings.Contains(string(doc), fmt.Sprintf("| 0x%04X | %s |", uint16(typ), name)) {
			t.Errorf("docs/linkf.md has no row for %04X %s", uint16(typ), name)
		}
	}
}

func TestMessagesSurviveTheirWay(t *testing.T) {
	for _, v := range vectors() {
		p, err := encMode.Marshal(v.msg)
		if err != nil {
			t.Fatalf("%s: %v", v.typ, err)
		}
		got := reflect.New(reflect.TypeOf(v.msg))
		if err := decMode.Unmarshal(p, got.Interface()); err != nil {
			t.Fatalf("%s: %v", v.typ, err)
		}
		if diff := cmp.Diff(v.msg, got.Elem().Interface(), cmp.Exporter(func(reflect.Type) bool { return true })); diff != "" {
			t.Errorf("%s (-sent +got):\n%s", v.typ, diff)
		}
	}
}

// A later version may add keys: they are left out here.
func TestUnknownKeysAreIgnored(t *testing.T) {
	p, err := encMode.Marshal(map[int]any{1: 7, 2: 300, 3: 4, 99: "new"})
	if err != nil {
		t.Fatal(err)
	}
	got, err := decode[command](frame{typ: typeCancel, payload: p})
	if want := (command{key{7, 300}, 4}); err != nil || got != want {
		t.Errorf("got %v, %v; want %v", got, err, want)
	}
}

// What a frame makes the decoder allocate is bounded, whatever it says.
func TestBombsAreDefused(t *testing.T) {
	array := func(n uint32) []byte { return []byte{0x9A, byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)} }
	many := func(head []byte, one byte, n int) []byte { return append(head, bytes.Repeat([]byte{one}, n)...) }
	bombs := map[string][]byte{
		"an array of 4 billion":     append([]byte{0xA1, 0x01}, array(1<<32-1)...),
		"100,000 empty structures":  many(append([]byte{0xA1, 0x01}, array(100_000)...), 0xA0, 100_000),
		"arrays in arrays":          append([]byte{0xA1, 0x01}, bytes.Repeat([]byte{0x81}, 100_000)...),
		"bytes of 2^63":             {0xA1, 0x04, 0x5B, 0x7F, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF},
		"a map of 2^31":             {0xBA, 0x7F, 0xFF, 0xFF, 0xFF},
		"a key twice":               {0xA2, 0x01, 0x01, 0x01, 0x02},
		"an array without a length": {0xA1, 0x01, 0x9F, 0xFF},
		"a tag":                     {0xC1, 0xA0},
		"text that is no UTF-8":     {0xA1, 0x05, 0x61, 0xFF},
	}
	for name, p := range bombs {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		failed := 0
		for _, v := range vectors() {
			if decMode.Unmarshal(p, reflect.New(reflect.TypeOf(v.msg)).Interface()) != nil {
				failed++
			}
		}
		runtime.ReadMemStats(&after)
		if failed == 0 {
			t.Errorf("%s is taken by every message, want it refused where its key is known", name)
		}
		if got := after.TotalAlloc - before.TotalAlloc; got > 64<<20 {
			t.Errorf("%s: %d bytes were allocated for %d messages", name, got, len(vectors()))
		}
	}
}

// The largest that a frame which is taken can make of itself.
func TestLargestMessageIsBounded(t *testing.T) {
	p := []byte{0xA1, 0x01, 0x99, 0x10, 0x00}
	p = append(p, bytes.Repeat([]byte{0xA0}, maxElements)...)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	m, err := decode[status](frame{typ: typeStatus, payload: p})
	runtime.ReadMemStats(&after)
	if err != nil || len(m.Instances) != maxElements {
		t.Fatalf("got %d instances, %v; want %d", len(m.Instances), err, maxElements)
	}
	if got := after.TotalAlloc - before.TotalAlloc; got > 4<<20 {
		t.Errorf("%d bytes of payload became %d, want at most 4 MiB", len(p), got)
	}
}

// Every message is read without a panic, and what is read can be written again.
func FuzzMessages(f *testing.F) {
	for i, v := range vectors() {
		p, err := encMode.Marshal(v.msg)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(uint8(i), p)
	}
	all := vectors()
	f.Fuzz(func(t *testing.T, which uint8, p []byte) {
		if len(p) > maxPayload {
			return
		}
		m := reflect.New(reflect.TypeOf(all[int(which)%len(all)].msg))
		if decMode.Unmarshal(p, m.Interface()) != nil {
			return
		}
		if _, err := encMode.Marshal(m.Elem().Interface()); err != nil {
			t.Fatalf("what was read cannot be written: %v", err)
		}
	})
}
