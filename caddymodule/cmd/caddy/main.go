// Command caddy is Caddy with its standard modules and Slotfleet.
package main

import (
	_ "time/tzdata"

	caddycmd "github.com/caddyserver/caddy/v2/cmd"

	_ "github.com/caddyserver/caddy/v2/modules/standard"

	_ "github.com/slotfleet/slotfleet"
)

func main() {
	caddycmd.Main()
}
