# Print an optspec for argparse to handle cmd's options that are independent of any subcommand.
function __fish_kubectl_cftunnel_global_optspecs
    string join \n color= h/help V/version
end

function __fish_kubectl_cftunnel_needs_command
    # Figure out if the current invocation already has a command.
    set -l cmd (commandline -opc)
    set -e cmd[1]
    argparse -s (__fish_kubectl_cftunnel_global_optspecs) -- $cmd 2>/dev/null
    or return
    if set -q argv[1]
        # Also print the command, so this can be used to figure out what it is.
        echo $argv[1]
        return 1
    end
    return 0
end

function __fish_kubectl_cftunnel_using_subcommand
    set -l cmd (__fish_kubectl_cftunnel_needs_command)
    test -z "$cmd"
    and return 1
    contains -- $cmd[1] $argv
end

complete -c kubectl-cftunnel -n "__fish_kubectl_cftunnel_needs_command" -l color -d 'When to use colours' -r -f -a "auto\t''
always\t''
never\t''"
complete -c kubectl-cftunnel -n "__fish_kubectl_cftunnel_needs_command" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c kubectl-cftunnel -n "__fish_kubectl_cftunnel_needs_command" -s V -l version -d 'Print version'
complete -c kubectl-cftunnel -n "__fish_kubectl_cftunnel_needs_command" -f -a "serve" -d 'Serve routes through a tunnel'
complete -c kubectl-cftunnel -n "__fish_kubectl_cftunnel_needs_command" -f -a "lint" -d 'Check manifests without a cluster'
complete -c kubectl-cftunnel -n "__fish_kubectl_cftunnel_needs_command" -f -a "route" -d 'Ask how requests are routed'
complete -c kubectl-cftunnel -n "__fish_kubectl_cftunnel_needs_command" -f -a "token" -d 'Look at tunnel tokens'
complete -c kubectl-cftunnel -n "__fish_kubectl_cftunnel_needs_command" -f -a "generate" -d 'Generate completions, man pages and CRDs'
complete -c kubectl-cftunnel -n "__fish_kubectl_cftunnel_needs_command" -f -a "version" -d 'Show the version and what it supports'
complete -c kubectl-cftunnel -n "__fish_kubectl_cftunnel_using_subcommand serve; and not __fish_seen_subcommand_from local proxy" -l color -d 'When to use colours' -r -f -a "auto\t''
always\t''
never\t''"
complete -c kubectl-cftunnel -n "__fish_kubectl_cftunnel_using_subcommand serve; and not __fish_seen_subcommand_from local proxy" -s h -l help -d 'Print help'
complete -c kubectl-cftunnel -n "__fish_kubectl_cftunnel_using_subcommand serve; and not __fish_seen_subcommand_from local proxy" -f -a "local" -d 'Serve a folder of manifests on this machine'
complete -c kubectl-cftunnel -n "__fish_kubectl_cftunnel_using_subcommand serve; and not __fish_seen_subcommand_from local proxy" -f -a "proxy" -d 'Serve the configuration that a controller pushes'
complete -c kubectl-cftunnel -n "__fish_kubectl_cftunnel_using_subcommand serve; and __fish_seen_subcommand_from local" -s f -l from-file -d 'Manifests: a file, a folder with all below it, or `-` for standard input; may be repeated' -r -F
complete -c kubectl-cftunnel -n "__fish_kubectl_cftunnel_using_subcommand serve; and __fish_seen_subcommand_from local" -l backend -d 'Where a Service\'s port is; may be repeated. Wins over EndpointSlices in the files' -r
complete -c kubectl-cftunnel -n "__fish_kubectl_cftunnel_using_subcommand serve; and __fish_seen_subcommand_from local" -l listen -d 'Where the built-in edge takes requests' -r
complete -c kubectl-cftunnel -n "__fish_kubectl_cftunnel_using_subcommand serve; and __fish_seen_subcommand_from local" -l tunnel-listen -d 'Where the built-in edge takes tunnel connections, of other connectors too; TCP and UDP' -r
complete -c kubectl-cftunnel -n "__fish_kubectl_cftunnel_using_subcommand serve; and __fish_seen_subcommand_from local" -l edge-ca-out -d 'Write the built-in edge\'s certificate here, for other connectors (PEM)' -r -F
complete -c kubectl-cftunnel -n "__fish_kubectl_cftunnel_using_subcommand serve; and __fish_seen_subcommand_from local" -l admin -d 'Where /healthz, /readyz and /metrics are, or `off`; 127.0.0.1:9901 or, when that is taken, a free port' -r
complete -c kubectl-cftunnel -n "__fish_kubectl_cftunnel_using_subcommand serve; and __fish_seen_subcommand_from local" -l direct -d 'Take requests here, too, without the tunnel: HTTP/1.1 and h2c; may be repeated' -r
complete -c kubectl-cftunnel -n "__fish_kubectl_cftunnel_using_subcommand serve; and __fish_seen_subcommand_from local" -l direct-tls -d 'The same over TLS, HTTP/2 and HTTP/1.1; may be repeated' -r
complete -c kubectl-cftunnel -n "__fish_kubectl_cftunnel_using_subcommand serve; and __fish_seen_subcommand_from local" -l direct-tls-cert -d 'Certificate chain of --direct-tls (PEM); read again when it changes' -r -F
complete -c kubectl-cftunnel -n "__fish_kubectl_cftunnel_using_subcommand serve; and __fish_seen_subcommand_from local" -l direct-tls-key -d 'Its key (PEM)' -r -F
complete -c kubectl-cftunnel -n "__fish_kubectl_cftunnel_using_subcommand serve; and __fish_seen_subcommand_from local" -l edge -d 'The edge to connect to; may be repeated. `cloudflare` finds Cloudflare\'s own' -r
complete -c kubectl-cftunnel -n "__fish_kubectl_cftunnel_using_subcommand serve; and __fish_seen_subcommand_from local" -l edge-ca-file -d 'Trust these authorities for the edge and no others (PEM)' -r -F
complete -c kubectl-cftunnel -n "__fish_kubectl_cftunnel_using_subcommand serve; and __fish_seen_subcommand_from local" -l edge-ip-version -d 'Address family towards the edge' -r -f -a "auto\t''
4\t''
6\t''"
complete -c kubectl-cftunnel -n "__fish_kubectl_cftunnel_using_subcommand serve; and __fish_seen_subcommand_from local" -l tunnel-protocol -d 'Transport: QUIC with HTTP/2 to fall back on, or one of them. gRPC needs auto or http2' -r -f -a "auto\t''
quic\t''
http2\t''"
complete -c kubectl-cftunnel -n "__fish_kubectl_cftunnel_using_subcommand serve; and __fish_seen_subcommand_from local" -l token-file -d 'File with the tunnel token or the credentials JSON; else the variable TUNNEL_TOKEN. Never an argument: those are public' -r -F
complete -c kubectl-cftunnel -n "__fish_kubectl_cftunnel_using_subcommand serve; and __fish_seen_subcommand_from local" -l grace-period -d 'How long requests in flight may take when told to stop' -r
complete -c kubectl-cftunnel -n "__fish_kubectl_cftunnel_using_subcommand serve; and __fish_seen_subcommand_from local" -l workers -d 'Threads that carry requests [default: one per core]' -r
complete -c kubectl-cftunnel -n "__fish_kubectl_cftunnel_using_subcommand serve; and __fish_seen_subcommand_from local" -l log-format -d 'How log lines look, on stderr' -r -f -a "plain\t''
json\t''"
complete -c kubectl-cftunnel -n "__fish_kubectl_cftunnel_using_subcommand serve; and __fish_seen_subcommand_from local" -l log-level -d 'What is logged: error, warn, info, debug, trace, or a filter such as info,cftunnel::proxy=debug; else the variable CFTUNNEL_LOG' -r
complete -c kubectl-cftunnel -n "__fish_kubectl_cftunnel_using_subcommand serve; and __fish_seen_subcommand_from local" -l color -d 'When to use colours' -r -f -a "auto\t''
always\t''
never\t''"
complete -c kubectl-cftunnel -n "__fish_kubectl_cftunnel_using_subcommand serve; and __fish_seen_subcommand_from local" -l demo-backends -d 'Start an echo server for every Service port that a route leads to'
complete -c kubectl-cftunnel -n "__fish_kubectl_cftunnel_using_subcommand serve; and __fish_seen_subcommand_from local" -l no-tunnel -d 'No tunnel at all, only --direct and --direct-tls'
complete -c kubectl-cftunnel -n "__fish_kubectl_cftunnel_using_subcommand serve; and __fish_seen_subcommand_from local" -l direct-tls-no-resumption -d 'Have every client of --direct-tls make a full handshake: no session tickets'
complete -c kubectl-cftunnel -n "__fish_kubectl_cftunnel_using_subcommand serve; and __fish_seen_subcommand_from local" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c kubectl-cftunnel -n "__fish_kubectl_cftunnel_using_subcommand serve; and __fish_seen_subcommand_from proxy" -l config-listen -d 'Where configuration is pushed to, over TLS' -r
complete -c kubectl-cftunnel -n "__fish_kubectl_cftunnel_using_subcommand serve; and __fish_seen_subcommand_from proxy" -l tls-cert-file -d 'Certificate of the config API (PEM); read again when it changes' -r -F
complete -c kubectl-cftunnel -n "__fish_kubectl_cftunnel_using_subcommand serve; and __fish_seen_subcommand_from proxy" -l tls-key-file -d 'Its key (PEM)' -r -F
complete -c kubectl-cftunnel -n "__fish_kubectl_cftunnel_using_subcommand serve; and __fish_seen_subcommand_from proxy" -l auth-token-file -d 'The bearer token that a push must have' -r -F
complete -c kubectl-cftunnel -n "__fish_kubectl_cftunnel_using_subcommand serve; and __fish_seen_subcommand_from proxy" -l gateway-uid -d 'UID of the Gateway that is served; a push for another one is refused' -r
complete -c kubectl-cftunnel -n "__fish_kubectl_cftunnel_using_subcommand serve; and __fish_seen_subcommand_from proxy" -l state-dir -d 'Folder for the last good configuration, encrypted; nothing is stored without it' -r -f -a "(__fish_complete_directories)"
complete -c kubectl-cftunnel -n "__fish_kubectl_cftunnel_using_subcommand serve; and __fish_seen_subcommand_from proxy" -l probe-listen -d 'Where /healthz, /readyz and /metrics are, over plain HTTP' -r
complete -c kubectl-cftunnel -n "__fish_kubectl_cftunnel_using_subcommand serve; and __fish_seen_subcommand_from proxy" -l config-wait -d 'How long to wait for a first configuration' -r
complete -c kubectl-cftunnel -n "__fish_kubectl_cftunnel_using_subcommand serve; and __fish_seen_subcommand_from proxy" -l direct -d 'Take requests here, too, without the tunnel: HTTP/1.1 and h2c; may be repeated' -r
complete -c kubectl-cftunnel -n "__fish_kubectl_cftunnel_using_subcommand serve; and __fish_seen_subcommand_from proxy" -l direct-tls -d 'The same over TLS, HTTP/2 and HTTP/1.1; may be repeated' -r
complete -c kubectl-cftunnel -n "__fish_kubectl_cftunnel_using_subcommand serve; and __fish_seen_subcommand_from proxy" -l direct-tls-cert -d 'Certificate chain of --direct-tls (PEM); read again when it changes' -r -F
complete -c kubectl-cftunnel -n "__fish_kubectl_cftunnel_using_subcommand serve; and __fish_seen_subcommand_from proxy" -l direct-tls-key -d 'Its key (PEM)' -r -F
complete -c kubectl-cftunnel -n "__fish_kubectl_cftunnel_using_subcommand serve; and __fish_seen_subcommand_from proxy" -l edge -d 'The edge to connect to; may be repeated. `cloudflare` finds Cloudflare\'s own' -r
complete -c kubectl-cftunnel -n "__fish_kubectl_cftunnel_using_subcommand serve; and __fish_seen_subcommand_from proxy" -l edge-ca-file -d 'Trust these authorities for the edge and no others (PEM)' -r -F
complete -c kubectl-cftunnel -n "__fish_kubectl_cftunnel_using_subcommand serve; and __fish_seen_subcommand_from proxy" -l edge-ip-version -d 'Address family towards the edge' -r -f -a "auto\t''
4\t''
6\t''"
complete -c kubectl-cftunnel -n "__fish_kubectl_cftunnel_using_subcommand serve; and __fish_seen_subcommand_from proxy" -l tunnel-protocol -d 'Transport: QUIC with HTTP/2 to fall back on, or one of them. gRPC needs auto or http2' -r -f -a "auto\t''
quic\t''
http2\t''"
complete -c kubectl-cftunnel -n "__fish_kubectl_cftunnel_using_subcommand serve; and __fish_seen_subcommand_from proxy" -l token-file -d 'File with the tunnel token or the credentials JSON; else the variable TUNNEL_TOKEN. Never an argument: those are public' -r -F
complete -c kubectl-cftunnel -n "__fish_kubectl_cftunnel_using_subcommand serve; and __fish_seen_subcommand_from proxy" -l grace-period -d 'How long requests in flight may take when told to stop' -r
complete -c kubectl-cftunnel -n "__fish_kubectl_cftunnel_using_subcommand serve; and __fish_seen_subcommand_from proxy" -l workers -d 'Threads that carry requests [default: one per core]' -r
complete -c kubectl-cftunnel -n "__fish_kubectl_cftunnel_using_subcommand serve; and __fish_seen_subcommand_from proxy" -l log-format -d 'How log lines look, on stderr' -r -f -a "plain\t''
json\t''"
complete -c kubectl-cftunnel -n "__fish_kubectl_cftunnel_using_subcommand serve; and __fish_seen_subcommand_from proxy" -l log-level -d 'What is logged: error, warn, info, debug, trace, or a filter such as info,cftunnel::proxy=debug; else the variable CFTUNNEL_LOG' -r
complete -c kubectl-cftunnel -n "__fish_kubectl_cftunnel_using_subcommand serve; and __fish_seen_subcommand_from proxy" -l color -d 'When to use colours' -r -f -a "auto\t''
always\t''
never\t''"
complete -c kubectl-cftunnel -n "__fish_kubectl_cftunnel_using_subcommand serve; and __fish_seen_subcommand_from proxy" -l no-tunnel -d 'No tunnel at all, only --direct and --direct-tls'
complete -c kubectl-cftunnel -n "__fish_kubectl_cftunnel_using_subcommand serve; and __fish_seen_subcommand_from proxy" -l direct-tls-no-resumption -d 'Have every client of --direct-tls make a full handshake: no session tickets'
complete -c kubectl-cftunnel -n "__fish_kubectl_cftunnel_using_subcommand serve; and __fish_seen_subcommand_from proxy" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c kubectl-cftunnel -n "__fish_kubectl_cftunnel_using_subcommand lint" -s f -l from-file -d 'Manifests: a file, a folder with all below it, or `-` for standard input; may be repeated' -r -F
complete -c kubectl-cftunnel -n "__fish_kubectl_cftunnel_using_subcommand lint" -s o -l output -d 'How to show the result' -r -f -a "table\t''
wide\t''
json\t''
yaml\t''
name\t''"
complete -c kubectl-cftunnel -n "__fish_kubectl_cftunnel_using_subcommand lint" -l color -d 'When to use colours' -r -f -a "auto\t''
always\t''
never\t''"
complete -c kubectl-cftunnel -n "__fish_kubectl_cftunnel_using_subcommand lint" -l strict -d 'Exit with 1 for warnings too'
complete -c kubectl-cftunnel -n "__fish_kubectl_cftunnel_using_subcommand lint" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c kubectl-cftunnel -n "__fish_kubectl_cftunnel_using_subcommand route; and not __fish_seen_subcommand_from trace" -l color -d 'When to use colours' -r -f -a "auto\t''
always\t''
never\t''"
complete -c kubectl-cftunnel -n "__fish_kubectl_cftunnel_using_subcommand route; and not __fish_seen_subcommand_from trace" -s h -l help -d 'Print help'
complete -c kubectl-cftunnel -n "__fish_kubectl_cftunnel_using_subcommand route; and not __fish_seen_subcommand_from trace" -f -a "trace" -d 'Show which rule would serve a request, and why the others would not'
complete -c kubectl-cftunnel -n "__fish_kubectl_cftunnel_using_subcommand route; and __fish_seen_subcommand_from trace" -s H -l header -d 'A header of the request; may be repeated' -r
complete -c kubectl-cftunnel -n "__fish_kubectl_cftunnel_using_subcommand route; and __fish_seen_subcommand_from trace" -s f -l from-file -d 'Manifests: a file, a folder with all below it, or `-` for standard input; may be repeated' -r -F
complete -c kubectl-cftunnel -n "__fish_kubectl_cftunnel_using_subcommand route; and __fish_seen_subcommand_from trace" -l expect -d 'What must be the answer: [NAMESPACE/]ROUTE[/RULE], with the rule\'s index or name, or a status such as 404' -r
complete -c kubectl-cftunnel -n "__fish_kubectl_cftunnel_using_subcommand route; and __fish_seen_subcommand_from trace" -s o -l output -d 'How to show the result' -r -f -a "table\t''
wide\t''
json\t''
yaml\t''
name\t''"
complete -c kubectl-cftunnel -n "__fish_kubectl_cftunnel_using_subcommand route; and __fish_seen_subcommand_from trace" -l color -d 'When to use colours' -r -f -a "auto\t''
always\t''
never\t''"
complete -c kubectl-cftunnel -n "__fish_kubectl_cftunnel_using_subcommand route; and __fish_seen_subcommand_from trace" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c kubectl-cftunnel -n "__fish_kubectl_cftunnel_using_subcommand token; and not __fish_seen_subcommand_from parse" -l color -d 'When to use colours' -r -f -a "auto\t''
always\t''
never\t''"
complete -c kubectl-cftunnel -n "__fish_kubectl_cftunnel_using_subcommand token; and not __fish_seen_subcommand_from parse" -s h -l help -d 'Print help'
complete -c kubectl-cftunnel -n "__fish_kubectl_cftunnel_using_subcommand token; and not __fish_seen_subcommand_from parse" -f -a "parse" -d 'Say what a credential is: tunnel token, credentials file, API token, mangled paste, …'
complete -c kubectl-cftunnel -n "__fish_kubectl_cftunnel_using_subcommand token; and __fish_seen_subcommand_from parse" -l file -d 'File with the credential or the Secret; standard input when absent. Never the credential itself: arguments are public' -r -F
complete -c kubectl-cftunnel -n "__fish_kubectl_cftunnel_using_subcommand token; and __fish_seen_subcommand_from parse" -l key -d 'Key within a Secret' -r
complete -c kubectl-cftunnel -n "__fish_kubectl_cftunnel_using_subcommand token; and __fish_seen_subcommand_from parse" -s o -l output -d 'How to show the result' -r -f -a "table\t''
wide\t''
json\t''
yaml\t''
name\t''"
complete -c kubectl-cftunnel -n "__fish_kubectl_cftunnel_using_subcommand token; and __fish_seen_subcommand_from parse" -l color -d 'When to use colours' -r -f -a "auto\t''
always\t''
never\t''"
complete -c kubectl-cftunnel -n "__fish_kubectl_cftunnel_using_subcommand token; and __fish_seen_subcommand_from parse" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c kubectl-cftunnel -n "__fish_kubectl_cftunnel_using_subcommand generate; and not __fish_seen_subcommand_from completions man crds" -l color -d 'When to use colours' -r -f -a "auto\t''
always\t''
never\t''"
complete -c kubectl-cftunnel -n "__fish_kubectl_cftunnel_using_subcommand generate; and not __fish_seen_subcommand_from completions man crds" -s h -l help -d 'Print help'
complete -c kubectl-cftunnel -n "__fish_kubectl_cftunnel_using_subcommand generate; and not __fish_seen_subcommand_from completions man crds" -f -a "completions" -d 'Completion script of a shell; `kubectl` is the script that kubectl calls for its plugin'
complete -c kubectl-cftunnel -n "__fish_kubectl_cftunnel_using_subcommand generate; and not __fish_seen_subcommand_from completions man crds" -f -a "man" -d 'Man pages'
complete -c kubectl-cftunnel -n "__fish_kubectl_cftunnel_using_subcommand generate; and not __fish_seen_subcommand_from completions man crds" -f -a "crds" -d 'CustomResourceDefinitions of our own kinds, as YAML'
complete -c kubectl-cftunnel -n "__fish_kubectl_cftunnel_using_subcommand generate; and __fish_seen_subcommand_from completions" -l out-dir -d 'Write all of them into this folder' -r -f -a "(__fish_complete_directories)"
complete -c kubectl-cftunnel -n "__fish_kubectl_cftunnel_using_subcommand generate; and __fish_seen_subcommand_from completions" -l color -d 'When to use colours' -r -f -a "auto\t''
always\t''
never\t''"
complete -c kubectl-cftunnel -n "__fish_kubectl_cftunnel_using_subcommand generate; and __fish_seen_subcommand_from completions" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c kubectl-cftunnel -n "__fish_kubectl_cftunnel_using_subcommand generate; and __fish_seen_subcommand_from man" -l out-dir -d 'Write all of them into this folder' -r -f -a "(__fish_complete_directories)"
complete -c kubectl-cftunnel -n "__fish_kubectl_cftunnel_using_subcommand generate; and __fish_seen_subcommand_from man" -l color -d 'When to use colours' -r -f -a "auto\t''
always\t''
never\t''"
complete -c kubectl-cftunnel -n "__fish_kubectl_cftunnel_using_subcommand generate; and __fish_seen_subcommand_from man" -s h -l help -d 'Print help'
complete -c kubectl-cftunnel -n "__fish_kubectl_cftunnel_using_subcommand generate; and __fish_seen_subcommand_from crds" -l out-dir -d 'Write all of them into this folder' -r -f -a "(__fish_complete_directories)"
complete -c kubectl-cftunnel -n "__fish_kubectl_cftunnel_using_subcommand generate; and __fish_seen_subcommand_from crds" -l color -d 'When to use colours' -r -f -a "auto\t''
always\t''
never\t''"
complete -c kubectl-cftunnel -n "__fish_kubectl_cftunnel_using_subcommand generate; and __fish_seen_subcommand_from crds" -s h -l help -d 'Print help'
complete -c kubectl-cftunnel -n "__fish_kubectl_cftunnel_using_subcommand version" -s o -l output -d 'How to show the result' -r -f -a "table\t''
wide\t''
json\t''
yaml\t''
name\t''"
complete -c kubectl-cftunnel -n "__fish_kubectl_cftunnel_using_subcommand version" -l color -d 'When to use colours' -r -f -a "auto\t''
always\t''
never\t''"
complete -c kubectl-cftunnel -n "__fish_kubectl_cftunnel_using_subcommand version" -s h -l help -d 'Print help'
