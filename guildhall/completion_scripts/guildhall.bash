# Completion of `guildhall` in bash. To use it: source <(guildhall completion bash)
_guildhall() {
    local line word candidates=()
    # The words up to the cursor, as they were typed. Readline would split them at ":" and "=".
    local words=()
    read -ra words <<<"${COMP_LINE:0:COMP_POINT}"
    [[ ${COMP_LINE:0:COMP_POINT} == *[[:space:]] ]] && words+=("")
    word=${words[${#words[@]} - 1]}
    COMPREPLY=()
    while IFS= read -r line; do
        if [[ $line == :files ]]; then
            compopt -o default 2>/dev/null
        else
            candidates+=("${line%%$'\t'*}")
        fi
    done < <("${words[0]/#\~\//$HOME/}" __complete "${words[@]:1}" 2>/dev/null)
    # Readline replaces only the part after the last of its separators.
    local prefix=""
    [[ $word == *[:=]* && $COMP_WORDBREAKS == *[:=]* ]] && prefix=${word%"${word##*[:=]}"}
    COMPREPLY=("${candidates[@]#"$prefix"}")
}
complete -F _guildhall guildhall
