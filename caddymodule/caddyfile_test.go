package caddymodule

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
)

// TestCaddyfiles adapts testdata/*.caddyfiletest: a Caddyfile, a line of ten dashes,
// and the JSON that it means.
func TestCaddyfiles(t *testing.T) {
	files, err := filepath.Glob("testdata/*.caddyfiletest")
	if err != nil || len(files) == 0 {
		t.Fatalf("no test files: %v", err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			content, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			input, want, ok := strings.Cut(string(content), "----------\n")
			if !ok {
				t.Fatal("no line of ten dashes")
			}
			if formatted := caddyfile.Format([]byte(input)); string(formatted) != input {
				t.Errorf("not as `caddy fmt` writes it (-want +got):\n%s", cmp.Diff(string(formatted), input))
			}
			config, err := adapt(input)
			if err != nil {
				t.Fatal(err)
			}
			var got bytes.Buffer
			if err := json.Indent(&got, config, "", "\t"); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(strings.TrimSpace(want), got.String()); diff != "" {
				t.Errorf("(-want +got):\n%s\ngot:\n%s", diff, got.String())
			}
		})
	}
}

func TestBadCaddyfilesAreRefused(t *testing.T) {
	const node = "node a http://127.0.0.1:1"
	global := func(lines string) string { return "{\n" + lines + "\n}\n" }
	site := func(lines string) string { return "{\nfleet {\n}\n}\nhttp://:0 {\n" + lines + "\n}\n" }
	for name, c := range map[string]struct{ input, message, line string }{
		"unknown option":        {global("fleet {\nnodes a b\n}"), `unknown option "nodes" in fleet: one of announce, attempts, buffer, drain_timeout, insecure, lease, listen, moves, node, policy, pool_high, preempt, queue, relink, retry, stall, token, tokens_file, warm`, "3"},
		"unknown node option":   {global("fleet {\n" + node + " {\nspeeed 1 2\n}\n}"), `unknown option "speeed" in node a: one of context, key, lanes, log, speed, tls_ca, token`, "4"},
		"unknown queue option":  {global("fleet {\nqueue {\nsize 3\n}\n}"), `unknown option "size" in queue: one of bytes, ping, requests, timeout`, "4"},
		"argument to fleet":     {global("fleet x {\n}"), "wrong argument count", "2"},
		"fleet twice":           {global("fleet {\n}\nfleet {\n}"), "there twice", "5"},
		"slotlog twice":         {global("slotlog {\n}\nslotlog {\n}"), "there twice", "5"},
		"option twice":          {global("fleet {\nretry 1s\nretry 2s\n}"), "retry is there twice in fleet", "4"},
		"node option twice":     {global("fleet {\n" + node + " {\nlanes 1\nlanes 2\n}\n}"), "lanes is there twice in node a", "5"},
		"unknown policy":        {global("fleet {\npolicy fastest\n}"), `unknown policy "fastest": one of lowest_cost, load_aware, least_loaded, round_robin`, "3"},
		"node without URL":      {global("fleet {\nnode a\n}"), "wrong argument count", "3"},
		"node with too much":    {global("fleet {\nnode a http://x y\n}"), "wrong argument count", "3"},
		"URL without scheme":    {global("fleet {\nnode a 10.0.0.2:8080\n}"), `node a: the address "10.0.0.2:8080" has no scheme: want http://`, "3"},
		"unknown scheme":        {global("fleet {\nnode a ftp://x\n}"), "node a: the scheme ftp:// is not known", "3"},
		"path of the API":       {global("fleet {\nnode a http://x:8080/v1/\n}"), "node a: the address http://x:8080/v1/ ends in /v1", "3"},
		"agent without port":    {global("fleet {\nnode a linkf://x\n}"), `node a: the address "linkf://x": want linkf://host:port`, "3"},
		"agent with path":       {global("fleet {\nnode a linkf://x:1/p\n}"), "want linkf://host:port", "3"},
		"agent with key":        {global("fleet {\nnode a linkf://x:1 {\nkey k\n}\n}"), "node a: key is about a llama-server, and linkf://x:1 is an agent", "5"},
		"agent with log":        {global("fleet {\nnode a linkf://x:1 {\nlog file /a\n}\n}"), "node a: log is about a llama-server", "5"},
		"agent with tls_ca":     {global("fleet {\nnode a linkf://x:1 {\ntls_ca /a\n}\n}"), "node a: tls_ca is about a llama-server", "5"},
		"short token":           {global("fleet {\nnode a linkf://x:1 {\ntoken sesame\n}\n}"), "a token is 64 hexadecimal digits, this one has 6 characters", "4"},
		"token for a server":    {global("fleet {\n" + node + " {\ntoken {env.A}\n}\n}"), "node a: token is for an agent", "5"},
		"short fleet token":     {global("fleet {\ntoken 00\n}"), "a token is 64 hexadecimal digits", "3"},
		"listen":                {global("fleet {\nlisten 8454\n}"), `listen "8454": want :port or host:port`, "3"},
		"listen on no port":     {global("fleet {\nlisten :0\n}"), `listen ":0": want a port from 1`, "3"},
		"insecure yes":          {global("fleet {\ninsecure yes\n}"), "wrong argument count", "3"},
		"relink":                {global("fleet {\nrelink never\n}"), `relink "never": want a duration above 0`, "3"},
		"source at an agent":    {global("slotlog {\nsource a file /a {\nserver linkf://x:1\n}\n}"), "linkf:// is where an agent listens", "4"},
		"unknown node word":     {global("fleet_node {\nhaed x\n}"), `unknown option "haed" in fleet_node: one of drain_timeout, head, identity, insecure, lanes, listen, log, tls_ca, token, upstream`, "3"},
		"fleet_node twice":      {global("fleet_node {\nlisten :1\nupstream http://x\n}\nfleet_node {\nlisten :1\nupstream http://x\n}"), "there twice", "9"},
		"node of no server":     {global("fleet_node {\nlisten :1\n}"), "fleet_node has no upstream", "4"},
		"node of no head":       {global("fleet_node {\nupstream http://x\n}"), "fleet_node has no head and no listen", "4"},
		"head of no scheme":     {global("fleet_node {\nhead x:1\n}"), `head: "x:1": want https://host/path, where the fleet has fleet_join, linkf://host:port, where it listens, or auto`, "3"},
		"server's CA, no TLS":   {global("fleet_node {\nhead linkf://x:1\nupstream http://x {\ntls_ca /ca\n}\n}"), `upstream: tls_ca is for https, and the address is http://x`, "6"},
		"head by FTP":           {global("fleet_node {\nhead ftp://x/join\n}"), `head: "ftp://x/join": want https://host/path or http://host/path`, "3"},
		"head with a password":  {global("fleet_node {\nhead https://u:secret@x/join\n}"), `want no user, password or fragment`, "3"},
		"head twice":            {global("fleet_node {\nhead linkf://x:1\nhead linkf://X:1\n}"), "head linkf://X:1 is there twice", "4"},
		"upstream an agent":     {global("fleet_node {\nupstream linkf://x:1\n}"), "linkf:// is where an agent listens", "3"},
		"node, short token":     {global("fleet_node {\ntoken abc\n}"), "a token is 64 hexadecimal digits", "3"},
		"node name twice":       {global("fleet {\n" + node + "\nnode a http://127.0.0.1:2\n}"), "node a is there twice", "4"},
		"node address twice":    {global("fleet {\n" + node + "\nnode b http://127.0.0.1:1\n}"), "node b: node a has the address", "4"},
		"same address":          {global("fleet {\nnode a http://Box:80/x/\nnode b http://box/x\n}"), "node b: node a has the address", "4"},
		"buffer":                {global("fleet {\nbuffer none\n}"), `buffer "none": want a size such as 64MiB`, "3"},
		"buffer too large":      {global("fleet {\nbuffer 2TiB\n}"), `buffer "2TiB": want a size`, "3"},
		"ping":                  {global("fleet {\nqueue {\nping never\n}\n}"), `ping "never": want off or a duration above 0`, "4"},
		"unknown warm option":   {global("fleet {\nwarm {\nbig\n}\n}"), `unknown option "big" in warm: one of memory_only, size`, "4"},
		"warm size":             {global("fleet {\nwarm {\nsize 0\n}\n}"), `size "0": want a size such as 64MiB`, "4"},
		"memory_only yes":       {global("fleet {\nwarm {\nmemory_only yes\n}\n}"), "wrong argument count", "4"},
		"negative lanes":        {global("fleet {\n" + node + " {\nlanes -1\n}\n}"), `lanes "-1": want a whole number from 1`, "4"},
		"context zero":          {global("fleet {\n" + node + " {\ncontext 0\n}\n}"), `context "0": want a whole number from 1`, "4"},
		"pool_high too high":    {global("fleet {\npool_high 101\n}"), `pool_high "101": want a whole number from 1 to 100`, "3"},
		"no duration":           {global("fleet {\nretry soon\n}"), `retry "soon": want a duration above 0, such as 10s`, "3"},
		"negative duration":     {global("fleet {\nstall -1s\n}"), `stall "-1s": want auto or a duration above 0`, "3"},
		"block where none is":   {global("fleet {\nretry 1s {\n}\n}"), "retry takes no block", "3"},
		"log of a strange kind": {global("fleet {\n" + node + " {\nlog journald x\n}\n}"), "want `file PATH` or `source NAME`", "4"},
		"speed of one figure":   {global("fleet {\n" + node + " {\nspeed 900\n}\n}"), "wrong argument count", "4"},
		"speed zero":            {global("fleet {\n" + node + " {\nspeed 900 0\n}\n}"), "want two figures above 0", "4"},
		"speed NaN":             {global("fleet {\n" + node + " {\nspeed NaN 1\n}\n}"), "want two figures above 0", "4"},
		"unknown slotlog word":  {global("slotlog {\nsauce x\n}"), `unknown option "sauce" in slotlog: one of source`, "3"},
		"source kind":           {global("slotlog {\nsource a syslog x\n}"), `source a: unknown kind "syslog": one of file, fifo`, "3"},
		"source without kind":   {global("slotlog {\nsource a\n}"), "wrong argument count", "3"},
		"source of two files":   {global("slotlog {\nsource a file /a /b\n}"), "wrong argument count", "3"},
		"source empty":          {global("slotlog {\nsource a file \"\"\n}"), "source a: what follows file is empty", "3"},
		"source relative":       {global("slotlog {\nsource a file a.log\n}"), `source a: the path "a.log" is relative`, "3"},
		"source folder":         {global("slotlog {\nsource a file /var/log/\n}"), "source a: /var/log/ is a folder", "3"},
		"source unit, option":   {global("slotlog {\nsource a journald --root=/\n}"), `source a: the name of the unit, "--root=/", begins with '-'`, "3"},
		"source unit, pattern":  {global("slotlog {\nsource a journald *\n}"), `source a: the name of the unit, "*", holds '*'`, "3"},
		"source container":      {global("slotlog {\nsource a docker a;b\n}"), `source a: the name of the container, "a;b", holds ';'`, "3"},
		"source pod":            {global("slotlog {\nsource a kubectl a/b\n}"), `source a: the name of the pod, "a/b", holds '/'`, "3"},
		"source stdin of what":  {global("slotlog {\nsource a stdin x\n}"), "wrong argument count", "3"},
		"source of no command":  {global("slotlog {\nsource a command\n}"), "wrong argument count", "3"},
		"source without path":   {global("slotlog {\nsource a file\n}"), "wrong argument count", "3"},
		"source twice":          {global("slotlog {\nsource a file /a\nsource a file /b\n}"), "source a is there twice", "4"},
		"source, server":        {global("slotlog {\nsource a file /a {\nserver x\n}\n}"), `the address "x" has no scheme`, "4"},
		"source, server twice":  {global("slotlog {\nsource a file /a {\nserver http://x\nserver http://y\n}\n}"), "server is there twice in source a", "5"},
		"source, lonely key":    {global("slotlog {\nsource a file /a {\nkey x\n}\n}"), "source a: key is that of a server", "5"},
		"source with nonsense":  {global("slotlog {\nsource a file /a {\nnonsense\n}\n}"), `unknown option "nonsense" in source a`, "4"},
		"unknown directive":     {site("fleet {\nkey x\n}"), `unknown option "key" in fleet: one of alias, any_model, class, keys, max_body, mixed, node_headers, read_timeout, resume, session_header, tenant, tool_calls`, "7"},
		"keys of two files":     {site("fleet {\nkeys a b\n}"), "wrong argument count", "7"},
		"keys twice":            {site("fleet {\nkeys a\nkeys b\n}"), "keys is there twice in fleet", "8"},
		"fleet_keys of nothing": {site("fleet_keys"), "wrong argument count", "6"},
		"fleet_keys of two":     {site("fleet_keys a b"), "wrong argument count", "6"},
		"fleet_keys, block":     {site("fleet_keys a {\nrealm x\n}"), "fleet_keys takes no block", "7"},
		"alias of one word":     {site("fleet {\nalias a\n}"), "wrong argument count", "7"},
		"alias twice":           {site("fleet {\nalias a b\nalias a c\n}"), "alias a is there twice", "8"},
		"any_model yes":         {site("fleet {\nany_model yes\n}"), "wrong argument count", "7"},
		"max_body":              {site("fleet {\nmax_body big\n}"), `max_body "big": want a size such as 64MiB`, "7"},
		"read_timeout":          {site("fleet {\nread_timeout 0s\n}"), `read_timeout "0s": want a duration above 0`, "7"},
		"class of words":        {site("fleet {\nclass high\n}"), "class high: want a whole number from 0 to 9, or a placeholder", "7"},
		"class too high":        {site("fleet {\nclass 10\n}"), "class 10: want a whole number", "7"},
		"tenant of two":         {site("fleet {\ntenant a b\n}"), "wrong argument count", "7"},
		"queue of no bytes":     {global("fleet {\nqueue {\nbytes few\n}\n}"), `bytes "few": want a size such as 64MiB`, "4"},
		"resume":                {site("fleet {\nresume maybe\n}"), `resume "maybe": one of before_first_byte, off, on`, "7"},
		"fleet_join of one":     {site("fleet_join\nfleet_join a"), "wrong argument count", "7"},
		"fleet_join, block":     {site("fleet_join {\ntoken x\n}"), "fleet_join takes no block", "7"},
		"session_header":        {site("fleet {\nsession_header \"a b\"\n}"), "is not the name of a header", "7"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := adapt(c.input)
			if err == nil {
				t.Fatalf("it was accepted:\n%s", c.input)
			}
			if !strings.Contains(err.Error(), c.message) {
				t.Errorf("got %q, want it to say %q", err, c.message)
			}
			if !strings.Contains(err.Error(), "Caddyfile:"+c.line) {
				t.Errorf("got %q, want line %s", err, c.line)
			}
		})
	}
}

// validate does what `caddy validate` does.
func validate(config []byte) error {
	var c caddy.Config
	if err := json.Unmarshal(config, &c); err != nil {
		return err
	}
	return caddy.Validate(&c)
}

func TestBadConfigsAreRefusedWithoutATrace(t *testing.T) {
	t.Setenv("SLOTFLEET_TEST_EMPTY", "")
	t.Setenv("SLOTFLEET_TEST_FILE", "a.log")
	t.Setenv("SLOTFLEET_TEST_HTTP", "http://127.0.0.1:1")
	folder := t.TempDir()
	linked := func(fleetNode string) string {
		return `{"admin":{"disabled":true},"apps":{"fleet_node":{"upstream":"http://x",` + fleetNode + `}}}`
	}
	apps := func(fleet, slotlog string) string {
		return `{"admin":{"disabled":true},"apps":{"fleet":` + fleet + `,"slotlog":` + slotlog + `}}`
	}
	node := func(more string) string { return `{"nodes":[{"name":"a","url":"http://127.0.0.1:1"` + more + `}]}` }
	const handler = `{"admin":{"disabled":true},"apps":{"http":{"servers":{"s":{"routes":[{"handle":[{"handler":"fleet"}]}]}}}}}`
	joining := strings.NewReplacer(`"apps":{`, `"apps":{"fleet":{},`, `"fleet"}`, `"fleet_join"}`).Replace(handler)
	huge := strings.NewReplacer(`"apps":{`, `"apps":{"fleet":{},`, `"fleet"}`, `"fleet","max_body":9223372036854774784}`).Replace(handler)
	for name, c := range map[string]struct{ config, message string }{
		"unknown field":         {apps(`{"nodez":[]}`, `{}`), "nodez"},
		"policy":                {apps(`{"policy":"fastest"}`, `{}`), "one of lowest_cost"},
		"key that is not set":   {apps(node(`,"key":"{env.SLOTFLEET_TEST_UNSET}"`), `{}`), "node a: the key cannot be read"},
		"key that is empty":     {apps(node(`,"key":"{env.SLOTFLEET_TEST_EMPTY}"`), `{}`), "node a: the key cannot be read"},
		"key file missing":      {apps(node(`,"key":"{file.`+folder+`/none}"`), `{}`), "node a: the key cannot be read"},
		"address not set":       {apps(`{"nodes":[{"name":"a","url":"{env.SLOTFLEET_TEST_UNSET}"}]}`, `{}`), "node a: the address cannot be read"},
		"address without host":  {apps(`{"nodes":[{"name":"a","url":"http://:80"}]}`, `{}`), "node a: "},
		"address with query":    {apps(`{"nodes":[{"name":"a","url":"http://x/?a"}]}`, `{}`), "node a: "},
		"address twice":         {apps(`{"nodes":[{"name":"a","url":"http://x"},{"name":"b","url":"http://x/"}]}`, `{}`), "node b: node a has the address"},
		"name twice":            {apps(`{"nodes":[{"name":"a","url":"http://x"},{"name":"a","url":"http://y"}]}`, `{}`), "node a is there twice"},
		"default port":          {apps(`{"nodes":[{"name":"a","url":"https://x:443/p/"},{"name":"b","url":"https://X/p"}]}`, `{}`), "node b: node a has the address"},
		"socket twice":          {apps(`{"nodes":[{"name":"a","url":"unix//a/b"},{"name":"b","url":"unix//a//b"}]}`, `{}`), "node b: node a has the address"},
		"agent of anybody":      {apps(`{"nodes":[{"name":"a","url":"linkf://10.0.0.3:1"}]}`, `{}`), "node a: linkf://10.0.0.3:1 is another machine, and there is no token"},
		"agent, token not set":  {apps(`{"nodes":[{"name":"a","url":"linkf://x:1","tokens":["{env.SLOTFLEET_TEST_UNSET}"]}]}`, `{}`), "node a: the token cannot be read"},
		"agent, short token":    {apps(`{"nodes":[{"name":"a","url":"linkf://x:1","tokens":["{env.SLOTFLEET_TEST_FILE}"]}]}`, `{}`), "node a: token: a token is 64 hexadecimal digits, this one has 5 characters"},
		"listen to anybody":     {apps(`{"listen":":8454"}`, `{}`), "listen :8454 is open to other machines, and there is no token"},
		"site open to anybody":  {strings.Replace(joining, `"fleet":{}`, `"fleet":{"nodes":[]}`, 1), "fleet_join is open to other machines, and there is no token"},
		"site of no fleet":      {strings.Replace(joining, `"fleet":{},`, ``, 1), "fleet_join needs the fleet app"},
		"tokens_file missing":   {apps(`{"listen":":8454","tokens_file":"`+folder+`/none"}`, `{}`), "tokens_file: open"},
		"long relink":           {apps(`{"relink":"27s"}`, `{}`), "relink 27s, lease 30s: want a lease above relink and 3s"},
		"short lease":           {apps(`{"lease":"8s"}`, `{}`), "relink 5s, lease 8s: want a lease above relink and 3s"},
		"long lease":            {apps(`{"lease":"11m"}`, `{}`), "lease 11m0s: want a lease above relink and 3s, and at most 10m"},
		"announce, no listen":   {apps(`{"announce":true}`, `{}`), "announce is about where nodes dial in: add `listen`"},
		"announce loopback":     {apps(`{"announce":true,"listen":"127.0.0.1:1"}`, `{}`), "announce tells other machines of listen 127.0.0.1:1, which none can reach"},
		"announce a name":       {apps(`{"announce":true,"insecure":true,"listen":"box:1"}`, `{}`), "listen has the name box: write its IP address"},
		"source of an agent":    {apps(`{"insecure":true,"nodes":[{"name":"a","url":"linkf://x:1"}]}`, `{"sources":[{"name":"a","file":"/a"}]}`), "node a: a source of the slotlog app has the name under which"},
		"node of any head":      {linked(`"heads":["auto"]`), "head auto takes any machine of the local network, and there is no token"},
		"node at any head":      {linked(`"heads":["linkf://10.0.0.1:1"]`), "head linkf://10.0.0.1:1 is another machine, and there is no token"},
		"node open to anybody":  {linked(`"listen":":1"`), "listen :1 is open to other machines, and there is no token"},
		"node, name of control": {linked(`"listen":"localhost:1","identity":"a\u001b[31m"`), "is not fit to be shown"},
		"node, long name":       {linked(`"listen":"localhost:1","identity":"` + strings.Repeat("a", 256) + `"`), "want at most 255 bytes of printable characters"},
		"name of control":       {apps(`{"nodes":[{"name":"a\nb","url":"http://x:1"}]}`, `{}`), `node "a\nb": its name is not fit to be shown`},
		"node without heads":    {linked(`"lanes":1`), "no head and no listen"},
		"node, log of both":     {linked(`"listen":"localhost:1","log":{"file":"/a","source":"b"}`), "log wants either a file or a source"},
		"node, log of nothing":  {linked(`"listen":"localhost:1","log":{"source":"b"}`), "log source b is not in the slotlog app; it has none"},
		"node, key not set":     {linked(`"listen":"localhost:1","key":"{env.SLOTFLEET_TEST_UNSET}"`), "key cannot be read"},
		"node, CA missing":      {linked(`"heads":["https://localhost/join"],"tls_ca":"` + folder + `/none"`), "pki/authorities/local/root.crt in the data folder of the head's Caddy"},
		"node, CA not set":      {linked(`"heads":["https://localhost/join"],"tls_ca":"{env.SLOTFLEET_TEST_UNSET}"`), "tls_ca cannot be read"},
		"server, CA missing":    {linked(`"listen":"localhost:1","upstream":"https://x","upstream_tls_ca":"` + folder + `/none"`), "upstream: tls_ca"},
		"server, CA not set":    {linked(`"listen":"localhost:1","upstream":"https://x","upstream_tls_ca":"{env.SLOTFLEET_TEST_UNSET}"`), "upstream: tls_ca cannot be read"},
		"server, CA, no TLS":    {linked(`"listen":"localhost:1","upstream":"http://x","upstream_tls_ca":"` + folder + `"`), "upstream: tls_ca is for https"},
		"node, CA a folder":     {linked(`"heads":["https://localhost/join"],"tls_ca":"` + folder + `"`), "is a directory"},
		"node, CA of no use":    {linked(`"heads":["linkf://localhost:1"],"tls_ca":"/a"`), "tls_ca is for a head with https, and there is none"},
		"null node":             {apps(`{"nodes":[null]}`, `{}`), "null"},
		"negative":              {apps(`{"retry":"-1s"}`, `{}`), "cannot be negative"},
		"negative lanes":        {apps(node(`,"lanes":-1`), `{}`), "node a: lanes and context"},
		"speed":                 {apps(node(`,"speed":{"prefill":1}`), `{}`), "node a: speed wants two figures"},
		"log of two kinds":      {apps(node(`,"log":{"file":"/a","source":"b"}`), `{}`), "node a: log wants either"},
		"log that is a folder":  {apps(node(`,"log":{"file":"`+folder+`"}`), `{}`), "is a folder"},
		"log of no source":      {apps(node(`,"log":{"source":"s"}`), `{"sources":[{"name":"other","file":"/a"}]}`), "node a: log source s is not in the slotlog app; it has other"},
		"log against source":    {apps(node(`,"log":{"file":"/a"}`), `{"sources":[{"name":"a","file":"/b"}]}`), "node a: its log and a source"},
		"tls_ca for http":       {apps(node(`,"tls_ca":"/a"`), `{}`), "tls_ca is for https"},
		"tls_ca, http hidden":   {apps(`{"nodes":[{"name":"a","url":"{env.SLOTFLEET_TEST_HTTP}","tls_ca":"/a"}]}`, `{}`), "node a: tls_ca is for https"},
		"tls_ca for a socket":   {apps(`{"nodes":[{"name":"a","url":"unix//a","tls_ca":"/a"}]}`, `{}`), "node a: tls_ca is for https"},
		"negative buffer":       {apps(`{"buffer":-1}`, `{}`), "buffer -1: want a number of bytes"},
		"huge buffer":           {apps(`{"buffer":1099511627777}`, `{}`), "1099511627776 (1 TiB)"},
		"huge warm index":       {apps(`{"warm":{"size":10737418241}}`, `{}`), "10737418240 (10 GiB)"},
		"huge queue":            {apps(`{"queue":{"bytes":1099511627777}}`, `{}`), "1099511627776 (1 TiB)"},
		"odd class":             {strings.Replace(huge, "\"max_body\":9223372036854774784", "\"class\":\"high\"", 1), "class high: want a whole number"},
		"huge max_body":         {huge, ": the most is 1099511627776 (1 TiB)"},
		"tls_ca missing":        {apps(`{"nodes":[{"name":"a","url":"https://x","tls_ca":"`+folder+`/none"}]}`, `{}`), "node a: tls_ca"},
		"source without name":   {apps(`{}`, `{"sources":[{"file":"/a"}]}`), "has no name"},
		"source without file":   {apps(`{}`, `{"sources":[{"name":"a"}]}`), "source a: want exactly one of file, fifo"},
		"source of two kinds":   {apps(`{}`, `{"sources":[{"name":"a","file":"/a","stdin":true}]}`), "source a: want exactly one of file, fifo"},
		"source relative":       {apps(`{}`, `{"sources":[{"name":"a","file":"{env.SLOTFLEET_TEST_FILE}"}]}`), `source a: log: the path "a.log" is relative`},
		"source, empty path":    {apps(`{}`, `{"sources":[{"name":"a","file":"{env.SLOTFLEET_TEST_EMPTY}"}]}`), "source a: log: "},
		"source folder":         {apps(`{}`, `{"sources":[{"name":"a","file":"`+folder+`"}]}`), "is a folder"},
		"source unit":           {apps(`{}`, `{"sources":[{"name":"a","journald":"-x"}]}`), `source a: log: the name of the unit, "-x", begins`},
		"source command":        {apps(`{}`, `{"sources":[{"name":"a","command":["cat"]}]}`), "source a: a command is run only by a Caddy that was started with SLOTFLEET_ALLOW_COMMANDS=1"},
		"source, server":        {apps(`{}`, `{"sources":[{"name":"a","file":"/a","server":"x"}]}`), "source a: server: the address"},
		"source, server unset":  {apps(`{}`, `{"sources":[{"name":"a","file":"/a","server":"{env.SLOTFLEET_TEST_UNSET}"}]}`), "source a: server: "},
		"source, lonely key":    {apps(`{}`, `{"sources":[{"name":"a","file":"/a","key":"x"}]}`), "source a: key is that of a server"},
		"source, empty key":     {apps(`{}`, `{"sources":[{"name":"a","file":"/a","server":"http://x","key":"{env.SLOTFLEET_TEST_EMPTY}"}]}`), "source a: the key cannot be read"},
		"source twice":          {apps(`{}`, `{"sources":[{"name":"a","file":"/a"},{"name":"a","file":"/b"}]}`), "source a is there twice"},
		"handler without fleet": {handler, "add a global `fleet` block"},
	} {
		t.Run(name, func(t *testing.T) {
			err := validate([]byte(c.config))
			if err == nil {
				t.Fatal("it was accepted")
			}
			if !strings.Contains(err.Error(), c.message) {
				t.Errorf("got %q, want it to say %q", err, c.message)
			}
			if currentState() != nil {
				t.Error("it left the state held")
			}
			tails.Range(func(path, _ any) bool {
				t.Errorf("it left %s held", path)
				return true
			})
		})
	}
}

func TestSecretsStayPlaceholders(t *testing.T) {
	t.Setenv("SLOTFLEET_TEST_KEY", "sesame")
	config, err := adapt("{\nfleet {\nnode a http://127.0.0.1:1 {\nkey {env.SLOTFLEET_TEST_KEY}\n}\n}\n}\n")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(config), "sesame") || !strings.Contains(string(config), "{env.SLOTFLEET_TEST_KEY}") {
		t.Errorf("got %s", config)
	}
	if err := validate(config); err != nil {
		t.Error(err)
	}
}
