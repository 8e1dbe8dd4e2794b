package slotlog

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf16"

	"github.com/google/go-cmp/cmp"
)

// eraLogs are one request and the launch of a second one as each era prints them.
var eraLogs = map[string]string{
	"E1": `slot 0 is processing [task id: 12]
slot 0 : in cache: 7 tokens | to process: 17 tokens
slot 0 : kv cache rm - [7, end)

print_timings: prompt eval time =     243.43 ms /    17 tokens (   14.32 ms per token,    69.84 tokens per second)
print_timings:        eval time =    5739.57 ms /   300 runs   (   19.20 ms per token,    52.09 tokens per second)
print_timings:       total time =    5982.99 ms
slot 0 released (323 tokens in cache)
all slots are idle and system prompt is empty, clear the KV cache
slot 1 is processing [task id: 13]
`,
	"E2": `{"function":"launch_slot_with_data","level":"INFO","line":802,"msg":"slot is processing task","slot_id":0,"task_id":12,"tid":"140","timestamp":1708900000}
{"function":"update_slots","level":"INFO","line":1800,"msg":"kv cache rm [p0, end)","p0":7,"slot_id":0,"task_id":12,"tid":"140","timestamp":1708900000}
{"function":"print_timings","level":"INFO","line":300,"msg":"prompt eval time     =     243.43 ms /    17 tokens (   14.32 ms per token,    69.84 tokens per second)","slot_id":0,"task_id":12,"tid":"140","timestamp":1708900001}
{"function":"print_timings","level":"INFO","line":301,"msg":"generation eval time =    5739.57 ms /   300 runs   (   19.20 ms per token,    52.09 tokens per second)","slot_id":0,"task_id":12,"tid":"140","timestamp":1708900001}
{"function":"update_slots","level":"INFO","line":1700,"msg":"slot released","n_cache_tokens":323,"n_ctx":1536,"n_past":323,"n_system_tokens":0,"slot_id":0,"task_id":12,"tid":"140","timestamp":1708900001,"truncated":false}
{"function":"launch_slot_with_data","level":"INFO","line":802,"msg":"slot is processing task","slot_id":1,"task_id":13,"tid":"140","timestamp":1708900002}
`,
	"E3, as text": `INFO [   launch_slot_with_task] slot is processing task | tid="140" timestamp=1713130052 id_slot=0 id_task=12
INFO [            update_slots] kv cache rm [p0, end) | tid="140" timestamp=1713130052 id_slot=0 id_task=12 p0=7
INFO [           print_timings] prompt eval time     =     243.43 ms /    17 tokens (   14.32 ms per token,    69.84 tokens per second) | tid="140" timestamp=1713130053 id_slot=0 id_task=12 t_prompt_processing=243.43
INFO [           print_timings] generation eval time =    5739.57 ms /   300 runs   (   19.20 ms per token,    52.09 tokens per second) | tid="140" timestamp=1713130053 id_slot=0 id_task=12 n_decoded=300
INFO [            update_slots] slot released | tid="140" timestamp=1713130053 id_slot=0 id_task=12 n_ctx=1536 n_past=323 n_system_tokens=0 n_cache_tokens=323 truncated=false
INFO [            update_slots] all slots are idle | tid="140" timestamp=1713130053
INFO [      log_server_request] request | tid="141" timestamp=1713130053 remote_addr="127.0.0.1" remote_port=55471 status=200 method="POST" path="/v1/x id_slot=0 id_task=13" params={}
INFO [   launch_slot_with_task] slot is processing task | tid="140" timestamp=1713130054 id_slot=1 id_task=13
`,
	"E3 from b3678": `INFO [   launch_slot_with_task] slot is processing task | tid="140" timestamp=1713130052 id_slot=0 id_task=12
INFO [                 release] slot released | tid="140" timestamp=1713130053 id_slot=0 id_task=12 n_past=323 truncated=false
INFO [           print_timings] generation eval time =    5739.57 ms /   300 runs   (   19.20 ms per token,    52.09 tokens per second) | tid="140" timestamp=1713130053 id_slot=0 id_task=12 n_decoded=300
INFO [   launch_slot_with_task] slot is processing task | tid="140" timestamp=1713130054 id_slot=1 id_task=13
`,
	"E4 before b4326": "slot launch_slot_: id  0 | task 12 | processing task\n" +
		"slot update_slots: id  0 | task 12 | new prompt, n_ctx_slot = 4096, n_keep = 0, n_prompt_tokens = 24\n" +
		"slot update_slots: id  0 | task 12 | kv cache rm [7, end)\n" +
		"slot update_slots: id  0 | task 12 | prompt processing progress, n_past = 24, n_tokens = 17, progress = 0.708333\n" +
		"slot update_slots: id  0 | task 12 | prompt done, n_past = 24, n_tokens = 17\n" +
		"slot      release: id  0 | task 12 | stop processing: n_past = 323, truncated = 0\n" +
		"slot print_timing: id  0 | task 12 | \n" +
		"\rprompt eval time =     243.43 ms /    17 tokens (   14.32 ms per token,    69.84 tokens per second)\n" +
		"\r       eval time =    5739.57 ms /   300 tokens (   19.20 ms per token,    52.09 tokens per second)\n" +
		"\r      total time =    5982.99 ms /   317 tokens\n" +
		"srv  update_slots: all slots are idle\n" +
		"slot launch_slot_: id  1 | task 13 | processing task\n",
	"E4": `slot get_availabl: id  0 | task 3 | selected slot by LRU, t_last = 86857261
slot launch_slot_: id  0 | task 12 | processing task
slot update_slots: id  0 | task 12 | new prompt, n_ctx_slot = 4096, n_keep = 0, n_prompt_tokens = 24
slot update_slots: id  0 | task 12 | n_past = 7, memory_seq_rm [7, end)
slot      release: id  0 | task 12 | stop processing: n_past = 323, truncated = 0
slot print_timing: id  0 | task 12 | 
prompt eval time =     243.43 ms /    17 tokens (   14.32 ms per token,    69.84 tokens per second)
       eval time =    5739.57 ms /   300 tokens (   19.20 ms per token,    52.09 tokens per second)
      total time =    5982.99 ms /   317 tokens
srv  update_slots: all slots are idle
slot launch_slot_: id  1 | task 13 | processing task
`,
	"E5": `slot get_availabl: id  0 | task -1 | selected slot by LCP similarity, sim_best = 0.292 (> 0.100 thold), f_keep = 0.041
slot launch_slot_: id  0 | task -1 | sampler chain: logits -> top-k -> dist 
slot launch_slot_: id  0 | task 12 | processing task, is_child = 0
slot update_slots: id  0 | task 12 | new prompt, n_ctx_slot = 4096, n_keep = 0, task.n_tokens = 24
slot update_slots: id  0 | task 12 | n_tokens = 7, memory_seq_rm [7, end)
slot update_slots: id  0 | task 12 | prompt processing progress, n_tokens = 24, batch.n_tokens = 17, progress = 1.000000
slot update_slots: id  0 | task 12 | prompt done, n_tokens = 24, batch.n_tokens = 17
slot print_timing: id  0 | task 12 | 
prompt eval time =     243.43 ms /    17 tokens (   14.32 ms per token,    69.84 tokens per second)
       eval time =    5739.57 ms /   300 tokens (   19.20 ms per token,    52.09 tokens per second)
      total time =    5982.99 ms /   317 tokens
draft acceptance rate = 0.57576 (  171 accepted /   297 generated)
slot      release: id  0 | task 12 | stop processing: n_tokens = 323, truncated = 0
srv  update_slots: all slots are idle
slot launch_slot_: id  1 | task 13 | processing task, is_child = 0
`,
	"E6": `0.12.000.000 I slot launch_slot_: id  0 | task 12 | processing task, is_child = 0
0.14.000.000 I slot print_timing: id  0 | task 12 | n_decoded =    173, tg =  54.33 t/s
0.18.000.000 I slot print_timing: id  0 | task 12 | 
prompt eval time =     243.43 ms /    17 tokens (   14.32 ms per token,    69.84 tokens per second)
       eval time =    5739.57 ms /   300 tokens (   19.20 ms per token,    52.09 tokens per second)
      total time =    5982.99 ms /   317 tokens
0.18.000.001 I slot      release: id  0 | task 12 | stop processing: n_tokens = 323, truncated = 0
0.18.000.002 I slot launch_slot_: id  1 | task 13 | processing task, is_child = 0
`,
	"E7": `0.12.000.000 I slot get_availabl: id  0 | task -1 | selected slot by LRU, t_last = -1
0.12.000.001 I slot launch_slot_: id  0 | task 12 | processing task, is_child = 0
0.14.000.000 I slot print_timing: id  0 | task 12 | n_decoded =    173, tg =  54.33 t/s, tg_3s =  54.64 t/s
0.18.000.000 I slot print_timing: id  0 | task 12 | prompt eval time =     243.43 ms /    17 tokens (   14.32 ms per token,    69.84 tokens per second)
0.18.000.000 I slot print_timing: id  0 | task 12 |        eval time =    5739.57 ms /   300 tokens (   19.20 ms per token,    52.09 tokens per second)
0.18.000.001 I slot      release: id  0 | task 12 | stop processing: n_tokens = 323, truncated = 0
0.18.000.002 I slot launch_slot_: id  1 | task 13 | processing task, is_child = 0
`,
	"E8": `0.11.000.000 I srv    load_model: initializing, n_slots = 2, n_ctx_slot = 8192, kv_unified = 'false'
0.12.000.000 I slot get_availabl: id  0 | task -1 | selected slot by LCP similarity, f_sim_best = 0.292 (> 0.100 thold), f_keep = 0.041
0.12.000.001 I slot launch_slot_: id  0 | task 12 | processing task, is_child = 0
0.15.000.000 I slot print_timing: id  0 | task 12 | prompt processing, n_tokens =     17, progress = 0.85, t =   3.05 s / 1342.95 tokens per second
0.16.000.000 I slot print_timing: id  0 | task 12 | n_gen =    173, tg =  54.33 t/s, tg_3s =  54.64 t/s
0.17.000.000 W srv          stop: cancel task, id_task = 12
0.18.000.000 I slot print_timing: id  0 | task 12 | prompt eval time =     243.43 ms /    17 tokens (   14.32 ms per token,    69.84 tokens per second)
0.18.000.000 I slot print_timing: id  0 | task 12 |        eval time =    5739.57 ms /   300 tokens (   19.20 ms per token,    52.09 tokens per second)
0.18.000.000 I slot print_timing: id  0 | task 12 | draft acceptance = 0.39850 ( 1331 accepted /  3340 generated), mean len =  2.59
0.18.000.001 I slot      release: id  0 | task 12 | stop processing: n_tokens = 323, truncated = 0
0.18.000.002 I slot launch_slot_: id  1 | task 13 | processing task, is_child = 0
`,
	"E9": `{"type":"log","time":3179,"level":"info","msg":"cmn  common_param: common_params_print_info: verbosity = 3\n"}
{"type":"log","time":1000000,"level":"info","msg":"slot get_availabl: id  0 | task -1 | selected slot by LRU, t_last = -1\n"}
{"type":"log","time":1000001,"level":"info","msg":"slot launch_slot_: id  0 | task 12 | processing task, is_child = 0\n"}
{"type":"fit_memory_breakdown","data":{"x":[1,2]}}
{"type":"log","time":7000000,"level":"info","msg":"slot print_timing: id  0 | task 12 |        eval time =    5739.57 ms /   300 tokens (   19.20 ms per token,    52.09 tokens per second)\n"}
{"type":"log","time":7000001,"level":"info","msg":"slot      release: id  0 | task 12 | stop processing: n_tokens = 323, truncated = 0\n"}
{"type":"log","time":7000002,"level":"info","msg":"slot launch_slot_: id  1 | task 13 | processing task, is_child = 0\n"}
`,
	"ik": `INFO [   launch_slot_with_task] slot is processing task | tid="140" timestamp=1777705911 id_slot=0 id_task=12
INFO [    batch_pending_prompt] kv cache rm [p0, end) | tid="140" timestamp=1777705911 id_slot=0 id_task=12 p0=7
slot print_timing: id  0 | task 12 | 
prompt eval time =     243.43 ms /    17 tokens (   14.32 ms per token,    69.84 tokens per second)
       eval time =    5739.57 ms /   300 tokens (   19.20 ms per token,    52.09 tokens per second)
      total time =    5982.99 ms /   317 tokens
INFO [           release_slots] slot released | tid="140" timestamp=1777705916 id_slot=0 id_task=12 n_ctx=32768 n_past=323 n_system_tokens=0 n_cache_tokens=323 truncated=false
INFO [              slots_idle] all slots are idle | tid="140" timestamp=1777705916
INFO [   launch_slot_with_task] slot is processing task | tid="140" timestamp=1777705917 id_slot=1 id_task=13
`,
}

// each puts something around every line.
func each(log string, around func(line string) string) string {
	var b strings.Builder
	for line := range strings.Lines(log) {
		b.WriteString(around(strings.TrimSuffix(line, "\n")))
	}
	return b.String()
}

func before(prefix string) func(string) string {
	return func(log string) string { return each(log, func(l string) string { return prefix + l + "\n" }) }
}

func quoted(s string) string {
	b, err := json.Marshal(s)
	if err != nil {
		panic(err)
	}
	return string(b)
}

// carriersOf are what collectors and wrappers make of a log.
var carriersOf = map[string]func(log string) string{
	"journalctl":              before("Dec 02 21:41:18 buildbox llama-server[24701]: "),
	"journalctl, a script":    before("May 23 00:31:11 desk1 start_llama_server.sh[385301]: "),
	"journalctl -o iso":       before("2026-07-28T20:08:40-0400 node1 llama-server[1686919]: "),
	"journalctl -o iso micro": before("2026-07-28T20:08:40.123229-04:00 t0 llama-server[1686919]: "),
	"journalctl -o full":      before("Sat 2026-05-23 00:31:11 UTC desk1 llama-server[24701]: "),
	"journalctl -o mono":      before("[ 1234.567890] desk1 llama-server[24701]: "),
	"journalctl -o unix":      before("1413732123.123456 desk1 llama-server[24701]: "),
	"journalctl -o json": func(log string) string {
		return each(log, func(l string) string {
			return `{"_PID":"24701","PRIORITY":"6","MESSAGE":` + quoted(l) + `,"_HOSTNAME":"desk1"}` + "\n"
		})
	},
	"journalctl -o json, bytes": func(log string) string {
		return each(log, func(l string) string {
			return `{"MESSAGE":` + strings.Join(strings.Fields(fmt.Sprint([]byte(l))), ",") + `,"_PID":"24701"}` + "\n"
		})
	},
	"syslog, no host":  before("Jun 18 08:58:17  llama-Main:[1357]: "),
	"syslog, no pid":   before("Jun  8 08:58:17 desk1 llama-server: "),
	"RFC 3164":         before("<30>Jun 18 08:58:17 desk1 llama-server[1357]: "),
	"RFC 5424":         before("<30>1 2026-06-18T08:58:17.003Z desk1 llama-server 1357 - - "),
	"RFC 5424, data":   before(`<30>1 2026-06-18T08:58:17.003Z desk1 llama-server 1357 ID7 [a@1 k="v \"]\" x"][b@1] ` + "\xef\xbb\xbf"),
	"kubectl":          before("2026-09-20T10:11:12.123456789Z "),
	"kubectl --prefix": before("[pod/llama-0/server] "),
	"CRI":              before("2026-09-20T10:11:12.123456789Z stderr F "),
	"CRI, cut": func(log string) string {
		return each(log, func(l string) string {
			n := len(l) / 2
			return "2026-09-20T10:11:12.1Z stderr P " + l[:n] + "\n2026-09-20T10:11:12.1Z stdout F another\n2026-09-20T10:11:12.1Z stderr F " + l[n:] + "\n"
		})
	},
	"docker": func(log string) string {
		return each(log, func(l string) string {
			return `{"log":` + quoted(l+"\n") + `,"stream":"stderr","time":"2026-09-20T10:11:12.123456789Z"}` + "\n"
		})
	},
	"docker, cut": func(log string) string {
		return each(log, func(l string) string {
			n := len(l) / 2
			return `{"log":` + quoted(l[:n]) + `,"stream":"stderr","time":"2026-09-20T10:11:12Z"}` + "\n" +
				`{"log":` + quoted(l[n:]+"\n") + `,"stream":"stderr","time":"2026-09-20T10:11:12Z"}` + "\n"
		})
	},
	"compose":             before("llama-cpp       | "),
	"compose, times":      before("llama.cpp-gpu-1  | 2026-09-20T10:11:12.123456789Z "),
	"compose, journalctl": before("Dec 02 21:41:18 buildbox docker[24701]: llama-1  | "),
	"pm2":                 before("0|llama  | "),
	"honcho":              before("12:00:01 web.1   | "),
	"ollama, epoch":       before("[1704891511] "),
	"LM Studio": func(log string) string {
		return each(log, func(l string) string { return "2026-06-04 13:15:21 [DEBUG]\n " + l + "\n" })
	},
	"LM Studio, inline": before("[2026-06-04 13:14:53][DEBUG] "),
	"llama-swap between": func(log string) string {
		return each(log, func(l string) string {
			if strings.Contains(l, "eval time") || strings.Contains(l, "print_timing") {
				return l + "\n" // a block is written at once
			}
			return `[llama-swap] ::1 [2025-03-20 11:09:33] "GET / HTTP/1.1" 200 390 "curl/8.5.0" 866µs` + "\n" + l + "\n"
		})
	},
	"ollama between": func(log string) string {
		return "time=2026-06-25T20:48:02.996+04:00 level=INFO source=sched.go:739 msg=\"loaded runners\" count=1\n" + log
	},
}

// endings are what may become of all lines, in any carrier.
var endings = map[string]func(string) string{
	"as it is":    func(log string) string { return log },
	"CRLF":        func(log string) string { return strings.ReplaceAll(log, "\n", "\r\n") },
	"BOM":         func(log string) string { return "\xef\xbb\xbf" + log },
	"UTF-16LE":    func(log string) string { return inUTF16(log, binary.LittleEndian) },
	"UTF-16BE":    func(log string) string { return inUTF16(log, binary.BigEndian) },
	"NULs before": func(log string) string { return strings.Repeat("\x00", 5000) + log },
}

func inUTF16(s string, order binary.AppendByteOrder) string {
	b := order.AppendUint16(nil, 0xfeff)
	for _, u := range utf16.Encode([]rune(s)) {
		b = order.AppendUint16(b, u)
	}
	return string(b)
}

// inColour is what a server with --log-colors prints for its prefixed lines.
func inColour(log string) string {
	return each(log, func(l string) string {
		if i := strings.Index(l, " I "); i > 0 && l[0] == '0' {
			l = "\x1b[34m" + l[:i] + "\x1b[0m \x1b[32mI \x1b[0m" + l[i+3:]
		} else if i := strings.Index(l, " W "); i > 0 && l[0] == '0' {
			l = "\x1b[34m" + l[:i] + "\x1b[0m \x1b[35mW \x1b[0m" + l[i+3:] + "\x1b[0m"
		}
		return l + "\n"
	})
}

func saidBy(log string) []string {
	var out []string
	events, _ := feed(SourceOptions{}, []byte(log), whole)
	for _, e := range events {
		out = append(out, eventWords(e))
	}
	return out
}

func TestEveryCarrierOfEveryEraSaysTheSameAsTheBareLines(t *testing.T) {
	combinations := 0
	for era, log := range eraLogs {
		want := saidBy(log)
		if len(want) < 4 || want[0] == "" || !strings.HasPrefix(want[len(want)-1], "launch slot 1 task 13") {
			t.Fatalf("%s: got %q, want a request and the launch of another", era, want)
		}
		for carrier, around := range carriersOf {
			for ending, change := range endings {
				combinations++
				if diff := cmp.Diff(want, saidBy(change(around(log)))); diff != "" {
					t.Errorf("%s in %s, %s (-bare +carried):\n%s", era, carrier, ending, diff)
				}
			}
			if diff := cmp.Diff(want, saidBy(around(inColour(log)))); diff != "" {
				t.Errorf("%s in colour in %s (-bare +carried):\n%s", era, carrier, diff)
			}
		}
	}
	if combinations < 1500 {
		t.Errorf("combinations: got %d, want all", combinations)
	}
}

func TestRoutersMarkOnEveryEraThatHasOne(t *testing.T) {
	for _, era := range []string{"E5", "E6", "E7", "E8", "E9"} {
		var want []string
		for _, words := range saidBy(eraLogs[era]) {
			kind, rest, _ := strings.Cut(words, " ")
			want = append(want, strings.TrimSpace(kind+" port 53409 "+rest))
		}
		mark := before("[53409] ")
		if diff := cmp.Diff(want, saidBy(mark(eraLogs[era]))); diff != "" {
			t.Errorf("%s below a router (-want +got):\n%s", era, diff)
		}
		for carrier, around := range carriersOf {
			if diff := cmp.Diff(want, saidBy(around(mark(eraLogs[era])))); diff != "" {
				t.Errorf("%s below a router in %s (-want +got):\n%s", era, carrier, diff)
			}
		}
		inObject := each(eraLogs[era], func(l string) string {
			return `{"type":"log","time":12345791,"level":"none","msg":` + quoted("[53409] "+l+"\n") + "}\n"
		})
		if era == "E5" || era == "E6" {
			continue // their bare lines in a record are not to be told from a request's text
		}
		if diff := cmp.Diff(want, saidBy(inObject)); diff != "" {
			t.Errorf("%s below a router that writes objects (-want +got):\n%s", era, diff)
		}
	}
}

func TestErasMayFollowEachOtherInOneFile(t *testing.T) {
	// From the old to the new one a log gains a prefix; the way back takes some lines
	// to be believed, and is tested with forged lines.
	order := []string{"E1", "E2", "E3, as text", "E3 from b3678", "E4 before b4326", "E4", "ik", "E5", "E6", "E7", "E8", "E9"}
	rng := rand.New(rand.NewPCG(5, 6))
	names := make([]string, 0, len(carriersOf))
	for name := range carriersOf {
		names = append(names, name)
	}
	for range 50 {
		var log strings.Builder
		// It begins without a container's name, so that columns are none's.
		log.WriteString("all slots are idle\n")
		want := saidBy("all slots are idle\n")
		for _, era := range order {
			log.WriteString(carriersOf[names[rng.IntN(len(names))]](eraLogs[era]))
			want = append(want, saidBy(eraLogs[era])...)
		}
		got := slices.DeleteFunc(saidBy(log.String()), func(words string) bool {
			return words == "reset" // the records' clock begins anew
		})
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("all eras in one file (-want +got):\n%s", diff)
		}
	}
}

func TestStreamsOfAContainerAreNotMixed(t *testing.T) {
	log := "2026-09-20T10:11:12.1Z stderr P slot launch_slot_: id  0 | ta\n" +
		"2026-09-20T10:11:12.1Z stdout P x\n" +
		"2026-09-20T10:11:12.1Z stderr F sk 12 | processing task\n" +
		"2026-09-20T10:11:12.1Z stdout F slot      release: id  0 | task 12 | stop processing: n_past = 1, truncated = 0\n"
	if diff := cmp.Diff([]string{"launch slot 0 task 12"}, saidBy(log)); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}

func TestPidIsNoPort(t *testing.T) {
	tr := track("2026-07-28T20:08:40.1-04:00 t0 llama-server[16869]: 0.12.345.678 I slot launch_slot_: id  0 | task 1 | processing task\n")
	if diff := cmp.Diff([]int{1}, tr.Ports()); diff != "" {
		t.Errorf("ports (-want +got):\n%s", diff)
	}
}

func TestCarrierInCarrierWithoutEndIsGivenUp(t *testing.T) {
	inner := "slot launch_slot_: id  0 | task 12 | processing task"
	for range 200 {
		inner = `{"log":` + quoted(inner+"\n") + `}`
		if len(inner) > DefaultMaxLine {
			break
		}
	}
	r, tr := NewReader(SourceOptions{}), NewTracker()
	r.Feed([]byte(inner+"\n"+strings.Repeat("a | ", 5000)+"\n"+strings.Repeat("[1704891511] ", 4000)+"\n"), noon, tr.Apply)
	if got := len(tr.Ports()); got != 0 {
		t.Errorf("ports: got %d, want none", got)
	}
	if got := r.Stats().Lines; got != 3 {
		t.Errorf("lines: got %d, want 3", got)
	}
}

func TestCodingIsFoundAtTheBeginningOfEachFile(t *testing.T) {
	const launch = "slot launch_slot_: id  0 | task 1 | processing task\n"
	r, tr := NewReader(SourceOptions{}), NewTracker()
	for i, log := range []string{inUTF16(launch, binary.LittleEndian), launch, inUTF16(launch, binary.BigEndian)} {
		r.Feed([]byte(log), noon.Add(time.Duration(i)*time.Second), tr.Apply)
		r.Cut(false)
	}
	if got := r.Stats(); got.Framed != 3 || got.Unknown != 0 {
		t.Errorf("got %d lines about slots, %d unknown, want 3 and 0", got.Framed, got.Unknown)
	}
}
