#compdef guildhall
# Completion of `guildhall` in zsh. To use it, after compinit: source <(guildhall completion zsh)
_guildhall() {
    local line value
    local -a values descriptions
    while IFS= read -r line; do
        if [[ $line == :files ]]; then
            _files
            continue
        fi
        value=${line%%$'\t'*}
        values+=("$value")
        descriptions+=("${line/$'\t'/  -- }")
    done < <("${(Q)words[1]/#\~\//$HOME/}" __complete "${(Q)words[@]:1:$((CURRENT - 1))}" 2>/dev/null)
    (( ${#values} )) && compadd -l -d descriptions -a values
}
compdef _guildhall guildhall
