package slotlog

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"
)

// secret stands for words of a prompt, and secretAddress for whom they came from.
const (
	secret        = "PIN-4711-ÄÖ"
	secretAddress = "198.51.100.77"
)

// linesWithText are the places of a log at which words of a request can stand.
var linesWithText = []string{
	"srv  log_server_r: request: POST /v1/chat/completions " + secretAddress + " 200",
	"srv  log_server_r: done request: GET /" + secret + " " + secretAddress + " 200",
	`srv  log_server_r: request:  {"messages":[{"role":"user","content":"` + secret + ` | task 9 | stop processing"}]}`,
	"srv    send_error: task id = 12, error: " + secret + " is no grammar",
	"srv  update_slots: decode() failed: " + secret,
	"srv  llama_server: failed to load model, '" + secret + "'",
	"srv  process_chun: downloading image from '" + secret + "'",
	"srv    operator(): got exception: " + secret,
	"srv    operator(): stop on unknown stream session, conv_id=" + secret + " matched nothing",
	"srv          init: init: chat template, example_format: '" + secret,
	"slot   operator(): id  0 | task 12 | n_gen = 17, n_remaining = 83, next token:   198 '" + secret + "'",
	"slot   operator(): id  0 | task 12 | got exception: " + secret,
	"slot   operator(): id  0 | task 12 | sampler chain: " + secret,
	"slot update_slots: id  0 | task 12 | old: ... " + secret,
	"slot update_slots: id  0 | task 12 | " + secret,
	"parse: error parsing grammar: " + secret,
	"data stream, to_send: data: {\"content\":\"" + secret + "\"}",
	`INFO [      log_server_request] request | tid="1" remote_addr="` + secretAddress + `" path="/` + secret + `" id_slot=0 id_task=12`,
	`{"tid":"1","level":"ERR","function":"send_error","msg":"task error","id_task":12,"error":"` + secret + `"}`,
	`{"tid":"1","level":"INFO","function":"x","msg":"` + secret + `","id_slot":0,"id_task":12}`,
	"task 12 - error: " + secret,
	"slot 0 is processing [task id: 12] " + secret,
	secret,
	"cmd_child_to_router:state:{\"state\":\"" + secret + "\",\"payload\":{\"value\":\"" + secret + "\"}}",
	`{"type":"` + secret + `","msg":"` + secret + `"}`,
	`{"log":"` + secret + `","stream":"` + secret + `"}`,
}

func TestNoWordOfARequestAndNoAddressLeavesTheReader(t *testing.T) {
	prefixes := map[string]string{"": "", "clock": "0.12.345.678 I ", "mark": "[53409] ", "both": "[53409] 0.12.345.678 W "}
	framed := uint64(0)
	for carrier, around := range carriersOf {
		for kind, prefix := range prefixes {
			var log strings.Builder
			log.WriteString(around(prefix + "slot launch_slot_: id  0 | task 12 | processing task, is_child = 0\n"))
			for _, text := range linesWithText {
				log.WriteString(around(prefix + text + "\n"))
				log.WriteString(around(text + "\n"))
			}
			r, tr := NewReader(SourceOptions{}), NewTracker()
			var said strings.Builder
			r.Feed([]byte(log.String()), noon, func(e Event) {
				fmt.Fprintf(&said, "%+v\n", e)
				tr.Apply(e)
			})
			framed += r.Stats().Framed
			out := []any{tr.TakeRecords(), tr.TakeRecords(), r.Stats()}
			for _, port := range tr.Servers() {
				out = append(out, tr.Server(port), tr.Details(port, noon), tr.Resolve(port, noon))
			}
			b, err := json.Marshal(out)
			if err != nil {
				t.Fatal(err)
			}
			for _, word := range []string{"4711", "ÄÖ", secretAddress} {
				if strings.Contains(said.String(), word) || strings.Contains(string(b), word) {
					t.Errorf("%s %s: %q is in an event or a detail:\n%s\n%s", carrier, kind, word, said.String(), b)
				}
			}
		}
	}
	if framed < 1000 {
		t.Errorf("lines about slots: got %d, want many, else nothing was tested", framed)
	}
}

func TestNameOfAModelIsShownWithoutControlBytes(t *testing.T) {
	var got string
	r := NewReader(SourceOptions{})
	r.Feed([]byte("0.01.000.000 I srv          load: spawning server instance with name=a\xffb\x07\x7f ü on port 5001\n"+
		"0.02.000.000 I srv    operator(): instance name=a\xffb\x07\x7f ü exited with status 0\n"), noon, func(e Event) {
		if e.Kind == KindModel {
			got = e.Model
		}
		if e.Kind == KindGone {
			got += " gone"
		}
	})
	if want := "a\ufffdb\ufffd\ufffd ü gone"; got != want || !utf8.ValidString(got) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// forged are lines that somebody who can bring a line feed into the log would write.
// The server's own have a prefix here, or are records, so none of these is one.
var forged = []string{
	"slot      release: id  0 | task 12 | stop processing: n_tokens = 1, truncated = 0",
	"slot launch_slot_: id  1 | task 99 | processing task",
	"srv  update_slots: all slots are idle",
	"srv    load_model: loading model 'x'",
	"srv    load_model: initializing, n_slots = 4096, n_ctx_slot = 1, kv_unified = 'true'",
	"srv  handle_sleep: server is entering sleeping state",
	"srv    operator(): operator(): cleaning up before exit...",
	"srv    operator(): instance name=m exited with status 0",
	"main: server is listening on http://0.0.0.0:666 - starting the main loop",
	`INFO [                 release] slot released | tid="1" timestamp=1 id_slot=0 id_task=12 n_past=1 truncated=false`,
	`{"tid":"1","level":"INFO","function":"update_slots","msg":"all slots are idle"}`,
	`{"type":"log","time":99999999999,"level":"info","msg":"srv  update_slots: all slots are idle\n"}`,
	"slot 0 released (513 tokens in cache)",
	"all slots are idle and system prompt is empty, clear the KV cache",
	"llama server shutting down",
	"       eval time =    1388.00 ms /   300 tokens (    4.63 ms per token,   216.14 tokens per second)",
	"I slot      release: id  0 | task 12 | stop processing: n_tokens = 1, truncated = 0",
	"\tslot      release: id  0 | task 12 | stop processing: n_tokens = 1, truncated = 0",
	"x | slot      release: id  0 | task 12 | stop processing: n_tokens = 1, truncated = 0",
	`{"log":"slot      release: id  0 | task 12 | stop processing: n_tokens = 1, truncated = 0\n","stream":"stderr"}`,
	"Dec 02 21:41:18 h llama-server[1]: slot      release: id  0 | task 12 | stop processing: n_tokens = 1, truncated = 0",
	"\x1b[0mslot      release: id  0 | task 12 | stop processing: n_tokens = 1, truncated = 0",
}

func TestForgedLineChangesNothingWhereLinesHaveAPrefix(t *testing.T) {
	const genuine = "0.11.000.000 I srv    load_model: initializing, n_slots = 2, n_ctx_slot = 8192, kv_unified = 'false'\n" +
		"0.12.000.001 I slot launch_slot_: id  0 | task 12 | processing task, is_child = 0\n" +
		"0.16.000.000 I slot print_timing: id  0 | task 12 | n_gen =    173, tg =  54.33 t/s, tg_3s =  54.64 t/s\n"
	const after = "0.19.000.000 I slot print_timing: id  0 | task 12 | n_gen =    300, tg =  54.33 t/s, tg_3s =  54.64 t/s\n"
	for name, around := range map[string]func(string) string{
		"bare":              func(log string) string { return log },
		"in docker":         carriersOf["docker"],
		"in journald":       carriersOf["journalctl"],
		"below a router":    before("[53409] "),
		"in CRI, with CRLF": func(log string) string { return endings["CRLF"](carriersOf["CRI"](log)) },
	} {
		port := 1
		if name == "below a router" {
			port = 53409
		}
		want := inWords(track(around(genuine+after)), noon)
		if !strings.Contains(want, "slot 0 decode task 12 gen 300") {
			t.Fatalf("%s: got %q, want the request in it", name, want)
		}
		for _, line := range forged {
			tr := track(around(genuine + line + "\n" + after))
			tr.Retain([]int{port}) // another port's number is nobody's slot
			if got := inWords(tr, noon); got != want {
				t.Errorf("%s, forged %q:\n got %s\nwant %s", name, line, got, want)
			}
		}
	}
}

func TestForgedLineChangesNothingWhereLinesAreRecords(t *testing.T) {
	log := eraLogs["E9"]
	want := inWords(track(log), noon)
	for _, line := range forged {
		if strings.HasPrefix(line, `{"type":"log"`) {
			continue // only a record's own text could hold it, where it is quoted
		}
		inside := `{"type":"log","time":7000003,"level":"warn","msg":"srv    operator(): conv_id=x\n` + strings.Trim(quoted(line), `"`) + `\n"}` + "\n"
		for how, forgery := range map[string]string{"by itself": line + "\n", "inside a record": inside} {
			if got := inWords(track(log+forgery), noon); got != want {
				t.Errorf("%s, %q:\n got %s\nwant %s", how, line, got, want)
			}
		}
	}
}

func TestForgedClockDisturbsAtMostTheSlotItNames(t *testing.T) {
	const genuine = "0.11.000.000 I srv    load_model: initializing, n_slots = 2, n_ctx_slot = 8192, kv_unified = 'false'\n" +
		"0.12.000.001 I slot launch_slot_: id  0 | task 12 | processing task, is_child = 0\n"
	const after = "0.13.000.001 I slot launch_slot_: id  1 | task 13 | processing task, is_child = 0\n"
	for _, stamp := range []string{"0.00.000.001", "0.05.000.000", "0.12.500.000", "99999.00.000.000"} {
		tr := track(genuine + stamp + " I slot launch_slot_: id  1 | task 99 | processing task, is_child = 0\n" + after)
		slots := tr.Resolve(1, noon)
		if len(slots) != 2 || slots[0].State != Processing || *slots[0].Task != 12 || slots[1].State != Processing || *slots[1].Task != 13 {
			t.Errorf("forged stamp %s: got %s, want task 12 and task 13", stamp, slotsJSON(t, tr, 1))
		}
	}
}

func TestSpeechOfAModelCannotReleaseASlotOfAnotherPort(t *testing.T) {
	tr := track("[53409] 0.12.000.001 I slot launch_slot_: id  0 | task 12 | processing task, is_child = 0\n" +
		"[53410] slot      release: id  0 | task 12 | stop processing: n_tokens = 1, truncated = 0\n" +
		"[53410] 9.00.000.000 I slot      release: id  0 | task 12 | stop processing: n_tokens = 1, truncated = 0\n")
	if got := tr.Resolve(53409, noon)[0].State; got != Processing {
		t.Errorf("state: got %s, want %s", got, Processing)
	}
}

func TestFunctionThatSaysNothingIsNoFailure(t *testing.T) {
	events, stats := feed(SourceOptions{}, []byte("llama_load : \n"), whole)
	if len(events) != 0 || stats.Lines != 1 {
		t.Errorf("got %+v of %d lines, want no event of one line", events, stats.Lines)
	}
}
