# Completion of `guildhall` in fish. To use it: guildhall completion fish | source
function __guildhall_complete
    set -l words (commandline -opc)
    set -l current (commandline -ct)
    for line in ($words[1] __complete $words[2..-1] $current 2>/dev/null)
        if test "$line" = ":files"
            __fish_complete_path $current
        else
            printf '%s\n' $line
        end
    end
end
complete -c guildhall -f -a '(__guildhall_complete)'
