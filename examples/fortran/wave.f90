! Ranks of a simulation in Fortran; see examples/c/wave.c, which does the same.
!
!     cc -O2 -c examples/c/zd_rank.c
!     gfortran -O2 -o wave examples/fortran/zd_rank.f90 examples/fortran/wave.f90 zd_rank.o
!     for rank in 0 1 2 3; do ./wave run.zarr 20 $rank & done; wait
program wave
    use, intrinsic :: iso_c_binding
    use, intrinsic :: iso_fortran_env, only: error_unit
    use zd_rank
    implicit none
    integer, parameter :: columns = 64, rows = 32, steps_per_object = 5
    real(c_float), target :: block(columns, rows, steps_per_object)
    real(c_double), target :: time
    character(1000) :: store, word
    integer :: rank, steps, step, x, y, first
    integer(c_long) :: coords(2), none(0)
    type(c_ptr) :: out

    call get_command_argument(1, store)
    call get_command_argument(2, word)
    read (word, *) steps
    call get_command_argument(3, word)
    read (word, *) rank
    coords = [rank/2, mod(rank, 2)]

    out = zd_attach(store, "", rank, zd_checksum)
    call check(c_associated(out))
    do step = int(zd_stored(out, "wave")), steps - 1
        do y = 1, rows
            do x = 1, columns
                block(x, y, mod(step, steps_per_object) + 1) = real(1 + step*10000 &
                    + (y - 1 + coords(1)*rows)*128 + x - 1 + coords(2)*columns, c_float)
            end do
        end do
        time = step/2d0
        first = step/steps_per_object*steps_per_object
        if (rank == 0) call check(zd_write(out, "time", int(step, c_long), int(step, c_long), &
            int(step + 1, c_long), none, c_loc(time), c_sizeof(time)))
        if (step + 1 == first + steps_per_object) call check(zd_write(out, "wave", &
            int(first/steps_per_object, c_long), int(first, c_long), int(step + 1, c_long), &
            coords, c_loc(block), c_sizeof(block)))
    end do
    call zd_detach(out)

contains

    subroutine check(worked)
        logical, intent(in) :: worked
        if (.not. worked) then
            write (error_unit, "(a)") zd_error()
            error stop
        end if
    end subroutine
end program
